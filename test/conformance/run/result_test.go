package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

func spec(name string, state types.SpecState) types.SpecReport {
	s := types.SpecReport{ContainerHierarchyTexts: []string{"[sig-x]"}, LeafNodeText: name, LeafNodeType: types.NodeTypeIt, State: state}
	if state != types.SpecStateSkipped {
		s.StartTime = time.Unix(1, 0)
	}
	if s.Failed() {
		s.Failure = types.Failure{Message: "because"}
	}
	return s
}

func TestJudge(t *testing.T) {
	specs := []types.SpecReport{spec("a", types.SpecStatePassed), spec("b", types.SpecStateFailed), spec("c", types.SpecStateSkipped), spec("d", types.SpecStateInterrupted), spec("other", types.SpecStateFailed)}
	results, err := judge([]string{"[sig-x] a", "[sig-x] b", "[sig-x] c", "[sig-x] d", "[sig-x] gone"}, specs)
	if err != nil {
		t.Fatal(err)
	}
	want := []verdict{passed, failed, skipped, skipped, failed}
	for i, r := range results {
		if r.verdict != want[i] {
			t.Errorf("%s: %s, want %s", r.name, r.verdict, want[i])
		}
	}
	broken := types.SpecReport{LeafNodeType: types.NodeTypeSynchronizedBeforeSuite, State: types.SpecStateFailed, Failure: types.Failure{Message: "no cluster"}}
	if _, err := judge(nil, []types.SpecReport{broken}); err == nil || !strings.Contains(err.Error(), "no cluster") {
		t.Errorf("a suite that did not start: %v", err)
	}
}

// TestConclude: a listed spec that fails is an error that names it, and the
// list only grows.
func TestConclude(t *testing.T) {
	dir := t.TempDir()
	o := options{out: dir, list: filepath.Join(dir, "list"), update: true}
	listed := []string{"b", "z"}
	var out bytes.Buffer
	err := conclude(&out, o, lists{passing: listed}, []result{{name: "b", verdict: failed}, {name: "a", verdict: passed}, {name: "c", verdict: failed}, {name: "d", verdict: skipped}})
	if err == nil {
		t.Error("a listed spec failed without an error")
	}
	want := "failed: b\nfailed: c\nin " + o.list + ", but failed: b\n1 passed, 2 failed, 1 skipped\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if list, err := readList(o.list); err != nil || !slices.Equal(list, []string{"a", "b", "z"}) {
		t.Errorf("list is %q, %v", list, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "failed", "b.log")); err != nil {
		t.Error(err)
	}
	if err := conclude(&out, options{out: dir}, lists{}, []result{{name: "d", verdict: skipped}}); err == nil {
		t.Error("nothing ran, without an error")
	}
	out.Reset()
	left := lists{left: map[string]string{"l": "no such kernel"}}
	if err := conclude(&out, o, left, []result{{name: "l", verdict: passed}}); err == nil || !strings.Contains(out.String(), "but passed: l\n") {
		t.Errorf("a spec that was left out passed: %v, %s", err, out.String())
	}
	if list, err := readList(o.list); err != nil || slices.Contains(list, "l") {
		t.Errorf("list is %q, %v", list, err)
	}
}

// TestShuffle: the word decides the order, and nothing is lost but serial specs.
func TestShuffle(t *testing.T) {
	names := strings.Fields("a b c d e f g h i j [Serial] [Slow]")
	one, two := shuffle(names, "monday"), shuffle(names, "tuesday")
	if slices.Equal(one, two) || !slices.Equal(one, shuffle(names, "monday")) {
		t.Errorf("monday %v, tuesday %v", one, two)
	}
	if got := slices.Sorted(slices.Values(one)); !slices.Equal(got, names[:10]) {
		t.Errorf("sample is of %v", got)
	}
}

// TestFocus: no argument is longer than the kernel takes.
func TestFocus(t *testing.T) {
	names := slices.Repeat([]string{"[sig-x] " + strings.Repeat("long ", 40)}, 446)
	for _, f := range focus(names) {
		if len(f) >= 128<<10 {
			t.Errorf("%d bytes", len(f))
		}
	}
}
