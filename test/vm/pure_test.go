package vm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestKernelTests: every package whose tests want root is tested in the guest.
func TestKernelTests(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "grep", "-l", `need\.Root(t)`, "--", "*_test.go").Output()
	if err != nil {
		t.Skip("needs git and its tree: ", err)
	}
	var in []string
	for _, p := range kernelTests {
		in = append(in, p.folder)
	}
	for file := range strings.FieldsSeq(string(out)) {
		if dir := filepath.Dir(file); !strings.HasPrefix(dir, "test/") && !slices.Contains(in, dir) {
			t.Errorf("%s is not in kernelTests", dir)
		}
	}
}

func TestResults(t *testing.T) {
	const output = `=== RUN   TestA
    a_test.go:1: said
--- PASS: TestA (0.10s)
=== RUN   TestB
=== RUN   TestB/part
    --- FAIL: TestB/part (0.20s)
--- FAIL: TestB (0.20s)
=== RUN   TestC
--- SKIP: TestC (0.00s)
=== RUN   TestD
panic: runtime error
`
	var got []string
	all := results(output)
	for _, r := range all {
		got = append(got, fmt.Sprint(r.name, r.outcome, r.took, strings.Count(r.output, "\n")))
	}
	if want := []string{"TestAPASS(0.10s)3", "TestBFAIL(0.20s)4", "TestCSKIP(0.00s)2", "TestDFAIL2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !failed(all) || failed(all[:1]) {
		t.Error("failed does not see what failed")
	}
}

func TestCutAnswer(t *testing.T) {
	for _, c := range []struct {
		in, output string
		code       int
		rest       string
		ok         bool
	}{
		{"some output", "", 0, "", false},
		{"out\n\nmark 12", "", 0, "", false}, // another digit may come
		{"out\n\nmark 127\n", "out\n", 127, "", true},
		{"\nmark 0\nlater", "", 0, "later", true},
		{"\nmarker 0\n", "", 0, "", false},
	} {
		output, code, rest, ok := cutAnswer([]byte(c.in), "mark")
		if output != c.output || code != c.code || string(rest) != c.rest || ok != c.ok {
			t.Errorf("%q: %q, %d, %q, %v", c.in, output, code, rest, ok)
		}
	}
}

func TestIndexes(t *testing.T) {
	of := map[string]module{
		"a":   {file: "k/a.ko", depends: []string{"b_1", "c"}, aliases: []string{"net-pf-10"}},
		"b_1": {file: "k/b-1.ko", depends: []string{"c"}},
		"c":   {file: "k/c.ko"},
	}
	all, err := closure([]string{"a"}, func(name string) (module, error) { return of[name], nil })
	if err != nil {
		t.Fatal(err)
	}
	dep, alias := indexes(all)
	if want := "k/c.ko:\nk/b-1.ko: k/c.ko\nk/a.ko: k/b-1.ko k/c.ko\n"; dep != want {
		t.Errorf("modules.dep is %q, want %q", dep, want)
	}
	if want := "alias net-pf-10 a\n"; alias != want {
		t.Errorf("modules.alias is %q, want %q", alias, want)
	}
	if _, err := closure([]string{"x"}, func(string) (module, error) { return module{}, os.ErrNotExist }); err == nil {
		t.Error("a module that is not there is no error")
	}
}

func TestParseModinfo(t *testing.T) {
	m := parseModinfo("license=GPL\x00alias=nft-expr-1-masq\x00alias=x\x00depends=nf-nat,nf_tables\x00")
	if !slices.Equal(m.depends, []string{"nf_nat", "nf_tables"}) || !slices.Equal(m.aliases, []string{"nft-expr-1-masq", "x"}) {
		t.Errorf("%+v", m)
	}
}

// TestInitramfs unpacks what is written, where a cpio is to be had.
func TestInitramfs(t *testing.T) {
	var b bytes.Buffer
	a := newInitramfs(&b)
	a.data("etc/deep/hosts", "127.0.0.1\n")
	a.data("etc/deep/empty", "")
	a.link("bin/sh", "busybox")
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	if b.Len()%4 != 0 {
		t.Errorf("%d bytes", b.Len())
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("needs busybox: apt-get install busybox-static: ", err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), busybox, "cpio", "-i")
	cmd.Dir, cmd.Stdin = dir, &b
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got, err := os.ReadFile(dir + "/etc/deep/hosts"); err != nil || string(got) != "127.0.0.1\n" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := os.Readlink(dir + "/bin/sh"); err != nil || got != "busybox" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSpecsOf(t *testing.T) {
	got := specsOf("# needs a cloud\na\n\n# has no SCTP; make vm-specs has\nb c\nd\n# slow\ne\n", "make vm-specs")
	if !slices.Equal(got, []string{"b c", "d"}) {
		t.Errorf("%q", got)
	}
}
