package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

// TestHugepages: every size that the kernel limits gets a limit, on either version.
func TestHugepages(t *testing.T) {
	for name, c := range map[string]struct {
		v2           bool
		dir          string
		named, other []string
		untouched    string
	}{
		"version 1": {false, "hugetlb/pods/p", []string{"hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.rsvd.limit_in_bytes"}, []string{"hugetlb.1GB.limit_in_bytes"}, "hugetlb.2MB.usage_in_bytes"},
		"version 2": {true, "pods/p", []string{"hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"}, []string{"hugetlb.1GB.max", "hugetlb.64KB.max"}, "hugetlb.2MB.current"},
	} {
		root := t.TempDir()
		dir := filepath.Join(root, c.dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range append(append(c.named, c.other...), c.untouched) {
			if err := os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tree := &Tree{root: root, v2: c.v2}
		limits := map[string]int64{"2MB": 4 << 20}
		if err := tree.LimitHugepages("/pods/p", func(size string) int64 { return limits[size] }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, f := range c.named {
			if got := read(t, dir, f); got != "4194304" {
				t.Errorf("%s: %s is %s", name, f, got)
			}
		}
		for _, f := range c.other {
			if got := read(t, dir, f); got != "0" {
				t.Errorf("%s: %s is %s", name, f, got)
			}
		}
		if got := read(t, dir, c.untouched); got != "x" {
			t.Errorf("%s: %s is %s", name, c.untouched, got)
		}
		if err := tree.LimitHugepages("/none", func(string) int64 { return 0 }); err != nil {
			t.Errorf("%s: where nothing is limited: %v", name, err)
		}
	}
}

// TestHasHugepages: on version 1 the controller is mounted, on version 2 in the root's list.
func TestHasHugepages(t *testing.T) {
	root := t.TempDir()
	for _, c := range []struct {
		tree *Tree
		list string
		want bool
	}{
		{&Tree{controllers: []string{"cpu", "memory"}}, "", false},
		{&Tree{controllers: []string{"cpu", "hugetlb"}}, "", true},
		{&Tree{v2: true}, "cpu memory pids\n", false},
		{&Tree{v2: true}, "cpu hugetlb pids\n", true},
	} {
		c.tree.root = root
		if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte(c.list), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := c.tree.HasHugepages(); got != c.want {
			t.Errorf("version 2 %v, controllers %v and %q: %v", c.tree.v2, c.tree.controllers, c.list, got)
		}
	}
}
