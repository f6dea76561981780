package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
)

// TestBoundFile: what a pod binds of the files in its volume is never opened. A
// FIFO would block here for ever.
func TestBoundFile(t *testing.T) {
	s := withImages(t)
	top := t.TempDir()
	t.Cleanup(func() { _ = unmountBelow(top); _ = Release(s.dir) })
	v := s.must(t, Request{ID: "v", Size: 20 << 20, Limit: Image})
	stage, target, bound := filepath.Join(top, "stage"), filepath.Join(top, "target"), filepath.Join(top, "bound")
	ok(t, s.Stage(v.ID, stage))
	ok(t, unix.Mkfifo(filepath.Join(stage, "fifo"), 0o600))
	ok(t, os.WriteFile(bound, nil, 0o600))
	ok(t, bind(filepath.Join(stage, "fifo"), bound, 0))
	ok(t, s.thaw())
	ok(t, s.Publish(v.ID, stage, target, unix.MS_RDONLY))
	for _, path := range []string{stage, target} {
		var st unix.Statfs_t
		ok(t, unix.Statfs(path, &st))
		if st.Flags&unix.MS_NODEV == 0 {
			t.Errorf("%s lets devices be opened", path)
		}
	}
	ok(t, s.Unpublish(v.ID, target))
	ok(t, unix.Mount("", stage, "", unix.MS_PRIVATE, ""))
	ok(t, unix.Unmount(stage, unix.MNT_DETACH)) // only the FIFO is mounted now
	_, err := s.CreateSnapshot(t.Context(), "snap", "snap", v.ID)
	ok(t, err)
	_, err = s.Expand(v.ID, 60<<20)
	ok(t, err)
	ok(t, unmount(bound))
	ok(t, s.Delete(v.ID))
	ok(t, s.DeleteSnapshot("snap"))
}

// TestBoundElsewhere: a volume is in use while it, or a directory in it, is mounted,
// whatever other volumes name their directories.
func TestBoundElsewhere(t *testing.T) {
	need.Root(t)
	s := open(t, filepath.Join(t.TempDir(), "storage"))
	at := filepath.Join(t.TempDir(), "at")
	ok(t, os.Mkdir(at, 0o700))
	t.Cleanup(func() { _ = unmount(at) })
	x := s.must(t, Request{ID: "x", Size: 1, Limit: None})
	z := s.must(t, Request{ID: "z", Size: 1, Limit: None})
	y := s.must(t, Request{ID: "y", Size: 1, Limit: None})
	ok(t, os.MkdirAll(s.path(z.ID, "sub"), 0o700))
	ok(t, os.MkdirAll(s.path(y.ID, x.ID), 0o700))
	for _, bound := range []string{s.path(z.ID), s.path(z.ID, "sub")} {
		ok(t, bind(bound, at, 0))
		if err := s.Delete(z.ID); !errors.Is(err, ErrInUse) {
			t.Errorf("while %s is mounted: %v", bound, err)
		}
		ok(t, unmount(at))
	}
	ok(t, bind(s.path(y.ID, x.ID), at, 0))
	if err := s.Delete(x.ID); err != nil {
		t.Errorf("while only another volume's directory of that name is mounted: %v", err)
	}
}
