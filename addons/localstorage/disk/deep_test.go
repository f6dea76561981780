package disk

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
)

// nest makes a chain of directories below dir.
func nest(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	ok(t, err)
	defer func() { unix.Close(at) }()
	for range depth {
		ok(t, unix.Mkdirat(at, "d", 0o700))
		next, err := unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		ok(t, err)
		unix.Close(at)
		at = next
	}
}

// TestDeleteDeep: a chain of directories that is deeper than files can be open is
// removed, by Delete and at the next start.
func TestDeleteDeep(t *testing.T) {
	const depth, files = 3000, 1000
	dir := filepath.Join(t.TempDir(), "storage")
	s := open(t, dir)
	v := s.must(t, Request{ID: "v", Size: 1, Limit: None})
	nest(t, s.path(v.ID), depth)
	ok(t, os.Mkdir(s.path(unfinishedDir, "half"), 0o700))
	nest(t, s.path(unfinishedDir, "half"), depth)
	var was unix.Rlimit
	ok(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	ok(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: was.Max}))
	defer func() { ok(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }()
	if err := s.Delete(v.ID); err != nil {
		t.Error(err)
	}
	open(t, dir)
	if left, _ := filepath.Glob(filepath.Join(dir, unfinishedDir, "*")); len(left) > 0 {
		t.Errorf("left: %d", len(left))
	}
}

// TestOpenLeavesWhatStays: what cannot be removed holds nothing up.
func TestOpenLeavesWhatStays(t *testing.T) {
	need.Root(t)
	dir := filepath.Join(t.TempDir(), "storage")
	s := open(t, dir)
	s.must(t, Request{ID: "v", Size: 1, Limit: None})
	file := s.path(unfinishedDir, "stays")
	ok(t, os.WriteFile(file, nil, 0o600))
	setFlags(t, file, unix.STATX_ATTR_IMMUTABLE)
	t.Cleanup(func() { setFlags(t, file, 0) })
	ok(t, os.MkdirAll(s.path(unfinishedDir, "zzz", "deep"), 0o700))
	s = open(t, dir)
	if _, err := s.Volume("v"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(s.path(unfinishedDir, "zzz")); err == nil {
		t.Error("what comes after it stays too")
	}
}

// setFlags sets a file's own flags, which are numbered as statx has them.
func setFlags(t *testing.T, path string, flags int) {
	t.Helper()
	f, err := os.Open(path)
	ok(t, err)
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags); err != nil {
		t.Skip("the file system of the temporary directory has no files that cannot be changed: ", err)
	}
}
