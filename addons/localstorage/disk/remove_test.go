package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
)

// immutable makes a file one that not even root can remove, or one as others.
func immutable(t *testing.T, path string, is bool) {
	t.Helper()
	f, err := os.Open(path)
	ok(t, err)
	defer f.Close()
	const flag = 0x10
	flags := 0
	if is {
		flags = flag
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags); err != nil {
		need.Skip(t, "no file of the temporary directory can be immutable: ", err)
	}
}

// TestRemoveAgain: what cannot be removed is an error at each try, until it can; whoever
// asks would else believe that the data is gone.
func TestRemoveAgain(t *testing.T) {
	need.Root(t)
	s := open(t, filepath.Join(t.TempDir(), "storage"))
	v := s.must(t, Request{ID: "v", Size: 4096, Limit: None})
	file := s.path(v.ID, "file")
	ok(t, os.WriteFile(file, []byte("data"), 0o600))
	_, err := s.CreateSnapshot(t.Context(), "snap", "snap", v.ID)
	ok(t, err)
	for _, c := range []struct {
		id, file string
		remove   func(string) error
	}{{v.ID, file, s.Delete}, {"snap", s.path(snapshotsDir, "snap", "file"), s.DeleteSnapshot}} {
		immutable(t, c.file, true)
		held := s.path(unfinishedDir, c.id, "file")
		t.Cleanup(func() {
			if _, err := os.Stat(held); err == nil {
				immutable(t, held, false)
			}
		})
		for range 3 {
			if err := c.remove(c.id); !errors.Is(err, unix.EPERM) {
				t.Errorf("%s: its data stays: %v", c.id, err)
			}
		}
		if _, err := os.Stat(held); err != nil {
			t.Error(err)
		}
		immutable(t, held, false)
		ok(t, c.remove(c.id))
		if _, err := os.Stat(s.path(unfinishedDir, c.id)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: left: %v", c.id, err)
		}
	}
	if len(s.leaving) > 0 {
		t.Errorf("remembered: %v", s.leaving)
	}
}

// TestRemoveAfterStart: neither does a process say so that was started after it failed.
func TestRemoveAfterStart(t *testing.T) {
	need.Root(t)
	dir := filepath.Join(t.TempDir(), "storage")
	s := open(t, dir)
	v := s.must(t, Request{ID: "v", Size: 4096, Limit: None})
	ok(t, os.WriteFile(s.path(v.ID, "file"), nil, 0o600))
	immutable(t, s.path(v.ID, "file"), true)
	held := s.path(unfinishedDir, v.ID, "file")
	t.Cleanup(func() { _ = os.Remove(held) })
	if err := s.Delete(v.ID); err == nil {
		t.Error("an immutable file is gone")
	}
	ok(t, s.Close())
	s = open(t, dir)
	if err := s.Delete(v.ID); !errors.Is(err, unix.EPERM) {
		t.Errorf("its data stays: %v", err)
	}
	immutable(t, held, false)
	ok(t, s.Delete(v.ID))
}
