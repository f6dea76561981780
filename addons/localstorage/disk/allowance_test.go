package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAllowance: a copy of what has a limit ends where it would have more than its source
// may have, however the source changes meanwhile, and the rest of it is removed.
func TestAllowance(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "storage"))
	v := s.must(t, Request{ID: "v", Size: 1 << 20, Limit: None})
	for i := range 20 {
		ok(t, os.WriteFile(s.path(v.ID, fmt.Sprint(i)), []byte(strings.Repeat("x", 4096)), 0o600))
	}
	for name, c := range map[string]struct {
		most *allowance
		ok   bool
	}{
		"nothing said": {nil, true},
		"what it has":  {&allowance{20 * 4096, 20}, true},
		"fewer files":  {&allowance{20 * 4096, 19}, false},
		"fewer bytes":  {&allowance{20*4096 - 1, 20}, false},
	} {
		to := filepath.Join(unfinishedDir, strings.ReplaceAll(name, " ", "-"))
		ok(t, s.root.Mkdir(to, 0o700))
		err := s.copyTree(t.Context(), v.ID, to, c.most)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrNoSpace) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The volume says that it has a quota, of which nothing is known here: it has its size.
	large := s.must(t, Request{ID: "large", Size: 4096, Limit: None})
	ok(t, os.WriteFile(s.path(large.ID, "file"), []byte(strings.Repeat("x", 8192)), 0o600))
	s.mu.Lock()
	s.volumes[large.ID].Limit = ProjectQuota
	s.mu.Unlock()
	if _, err := s.CreateSnapshot(t.Context(), "snap", "snap", large.ID); !errors.Is(err, ErrNoSpace) {
		t.Errorf("a snapshot of more than its volume may have: %v", err)
	}
	if _, err := os.Stat(s.path(unfinishedDir, "snap")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what could not be finished: %v", err)
	}
}

// TestFewInodes: copies leave inodes to the rest of the node, where there is a number of
// them, and do not have the same ones.
func TestFewInodes(t *testing.T) {
	for _, c := range []struct {
		all, free uint64
		want      int64
	}{{1000, 1000, 900}, {1000, 100, 0}, {1000, 50, -50}, {1 << 63, 1 << 63, 1<<62 - 1<<62/10}} {
		if got := freeFiles(c.all, c.free); got != c.want {
			t.Errorf("of %d, %d free: %d, want %d", c.all, c.free, got, c.want)
		}
	}
	s := open(t, filepath.Join(t.TempDir(), "storage"))
	done, err := s.promiseFiles(10)
	ok(t, err)
	done()
	if s.files != 0 {
		t.Errorf("%d are set aside once it is done", s.files)
	}
	s.files = 1 << 62 // of other copies
	v := s.must(t, Request{ID: "v", Size: 4096, Limit: None})
	if _, err := s.CreateSnapshot(t.Context(), "snap", "snap", v.ID); !errors.Is(err, ErrNoSpace) {
		t.Errorf("a snapshot without inodes: %v", err)
	}
	if _, err := s.Create(t.Context(), Request{ID: "c", Name: "c", Size: 4096, From: v.ID}); !errors.Is(err, ErrNoSpace) {
		t.Errorf("a copy without inodes: %v", err)
	}
}

// TestGrown: a snapshot may have what its volume had and some more, but not more than that
// may have.
func TestGrown(t *testing.T) {
	for _, c := range []struct{ used, size, want int64 }{{0, 1 << 20, 1 << 20}, {0, 1 << 40, growth}, {400 << 20, 1 << 40, 500<<20 + growth}, {2 << 30, 1 << 30, 1 << 30}} {
		if got := grown(c.used, c.size); got != c.want {
			t.Errorf("%d of %d: %d, want %d", c.used, c.size, got, c.want)
		}
	}
}
