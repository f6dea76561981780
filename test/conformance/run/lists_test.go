package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPick: -beyond runs what is not marked Conformance, but what is left out.
func TestPick(t *testing.T) {
	names := []string{"a [Conformance]", "b", "c [Serial]", "d", "e [Serial] [Conformance]", "f", "g [Feature:LoadBalancer]", "h"}
	alone := []string{names[2], names[6]}
	l := lists{left: map[string]string{"d": "why"}, without: []string{"h", "elsewhere"}}
	for _, c := range []struct {
		o               options
		together, alone []string
	}{
		{options{}, names[:1], names[4:5]},
		{options{beyond: true}, []string{"b", "f"}, alone},
		{options{beyond: true, try: true}, []string{"b", "d", "f"}, alone},
		{options{beyond: true, focus: "g"}, nil, names[6:7]},
		{options{beyond: true, focus: "b|c", skip: "Serial|Load"}, names[1:2], nil},
	} {
		together, alone := pick(c.o, l, names)
		if !slices.Equal(together, c.together) || !slices.Equal(alone, c.alone) {
			t.Errorf("%+v: %q and %q", c.o, together, alone)
		}
	}
}

// TestStale: a list names what the suite has, and not what another one names.
func TestStale(t *testing.T) {
	names := []string{"a", "b"}
	for _, c := range []struct {
		l    lists
		want string
	}{
		{lists{passing: names[:1], left: map[string]string{"b": "why"}}, ""},
		{lists{passing: []string{"z"}}, "no such spec: z"},
		{lists{left: map[string]string{"z": "why"}}, "no such spec: z"},
		{lists{passing: names, left: map[string]string{"b": "why"}}, `because "why": b`},
	} {
		err := c.l.stale(names)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasSuffix(err.Error(), c.want)) {
			t.Errorf("%v: %v", c.l, err)
		}
	}
}

// TestReadLeft: each name has a reason, once.
func TestReadLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "left")
	for text, ok := range map[string]bool{
		"# one\na\nb\n\n# two\nc\n": true,
		"a\n":                       false,
		"#\na\n":                    false,
		"# one\na\n# two\na\n":      false,
		"# one\n~ a(\n":             false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		left, _, err := readLeft(path)
		if ok != (err == nil) || ok && (len(left) != 3 || left["b"] != "one" || left["c"] != "two") {
			t.Errorf("%q: %v, %v", text, left, err)
		}
	}
}

// TestFamilies: a line stands for all specs whose whole name matches; one that is named
// has a reason of its own.
func TestFamilies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "left")
	if err := os.WriteFile(path, []byte("# one\n~ \\[a\\] .*\n# two\n[a] x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var l lists
	var err error
	if l.left, l.whole, err = readLeft(path); err != nil {
		t.Fatal(err)
	}
	if err := l.members([]string{"[a] x", "[a] y", "b [a] z"}); err != nil || !maps.Equal(l.left, map[string]string{"[a] x": "two", "[a] y": "one"}) {
		t.Errorf("%v, %v", l.left, err)
	}
	if err := l.members([]string{"b"}); err == nil {
		t.Error("a family without members is taken")
	}
}

// TestLists: the lists kept here can be read, and agree.
func TestLists(t *testing.T) {
	var l lists
	var err error
	if l.left, l.whole, err = readLeft("../e2e-left.txt"); err != nil {
		t.Fatal(err)
	}
	if l.passing, err = readList("../e2e-passing.txt"); err != nil {
		t.Fatal(err)
	}
	for _, f := range l.whole {
		if i := slices.IndexFunc(l.passing, f.match.MatchString); i >= 0 {
			t.Errorf("e2e-passing.txt has %s, which is left out: %s", l.passing[i], f.why)
		}
	}
	conformance, err := readList("../passing.txt")
	if err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string][]string{"e2e-passing.txt": l.passing, "passing.txt": conformance} {
		if !slices.IsSorted(list) || len(slices.Compact(slices.Clone(list))) != len(list) {
			t.Errorf("%s is not sorted, or names a spec twice", name)
		}
		for _, n := range list {
			if strings.Contains(n, "[Conformance]") != (name == "passing.txt") {
				t.Errorf("%s has %s", name, n)
			}
			if why, ok := l.left[n]; ok {
				t.Errorf("%s has %s, which is left out: %s", name, n, why)
			}
		}
	}
}
