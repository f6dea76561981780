package disk

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
)

// TestCopyFollowsNothing: a directory that a container swaps for a link while its
// volume is copied leads to no other volume.
func TestCopyFollowsNothing(t *testing.T) {
	need.Root(t)
	s := open(t, filepath.Join(t.TempDir(), "storage"))
	v := s.must(t, Request{ID: "v", Size: 1, Limit: None})
	other := s.must(t, Request{ID: "other", Size: 1, Limit: None})
	ok(t, os.Mkdir(s.path(other.ID, "dir"), 0o755))
	ok(t, os.WriteFile(s.path(other.ID, "dir", "secret"), []byte("x"), 0o644))
	ok(t, os.Symlink("../other", s.path(v.ID, "link")))
	for _, from := range []string{"v/link", "v/link/dir"} {
		ok(t, os.MkdirAll(s.path(unfinishedDir, "to"), 0o700))
		if err := s.copyTree(t.Context(), from, filepath.Join(unfinishedDir, "to"), nil); err == nil {
			t.Errorf("%s was followed", from)
		}
		ok(t, os.RemoveAll(s.path(unfinishedDir, "to")))
	}
	ok(t, os.Mkdir(s.path(v.ID, "dir"), 0o755))
	for i := range 200 {
		ok(t, os.WriteFile(s.path(v.ID, "dir", string(rune('a'+i%26))+string(rune('a'+i/26))), nil, 0o644))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, s.path(v.ID, "dir"), unix.AT_FDCWD, s.path(v.ID, "link"), unix.RENAME_EXCHANGE)
			}
		}
	})
	for range 30 {
		if _, err := s.Create(t.Context(), Request{ID: "c", Name: "c", Size: 4096, From: v.ID}); err == nil {
			for _, name := range []string{"dir", "link"} {
				if st, err := os.Lstat(s.path("c", name)); err == nil && st.Mode()&os.ModeSymlink == 0 {
					if _, err := os.Lstat(s.path("c", name, "dir", "secret")); err == nil {
						t.Error("the copy has another volume's files")
					}
				}
			}
			ok(t, s.Delete("c"))
		}
	}
	close(stop)
	wg.Wait()
}
