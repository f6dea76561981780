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
