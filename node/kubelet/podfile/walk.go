package podfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"knarr/internal/dirfd"
)

// ErrMoved is the error for directories that were moved while the walk was below
// them and that it did not find again: some of what is in them was not visited.
var ErrMoved = errors.New("directories were moved meanwhile")

// Walk visits a file, or a directory and all that is below it, each before
// what is in it. What is mounted below is not visited, nor asked. A visit gets
// the file as an O_PATH descriptor, so that it acts on what was looked at. A
// container decides how many files there are and how deep they lie: the walk
// holds four descriptors at most, and 32 bytes for each level.
//
// A container also moves directories while the walk is in them. The walk then
// goes on in the deepest directory above that is where it was, and does not
// visit what was moved a second time. If that left out a directory, the walk
// still visits the rest, and ends with ErrMoved. On tmpfs before Linux 6.6, where the positions
// of a listing shift with what is removed from a directory, it may miss a neighbour without
// knowing; emptyDirs of memory are mounted, and not walked.
func Walk(ctx context.Context, path string, visit func(fd int, st *unix.Stat_t) error) error {
	w := walk{ctx: ctx, visit: visit, buf: make([]byte, 32<<10)}
	return w.begin(path)
}

type walk struct {
	ctx    context.Context
	visit  func(fd int, st *unix.Stat_t) error
	buf    []byte
	root   int // O_PATH
	levels []level
	search search
}

// A file names a file on a machine while it is there.
type file struct{ dev, ino uint64 }

func fileOf(st *unix.Stat_t) file { return file{st.Dev, st.Ino} }

// A level is a directory the walk will come back to.
type level struct {
	file
	down int64 // where its listing has the directory that the walk went down to
	at   int64 // where its listing goes on
}

func (w *walk) begin(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := w.visit(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return err
	}
	dir, err := list(fd)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	w.root = fd
	if err := w.tree(dir, level{file: fileOf(&st)}); err != nil {
		return fmt.Errorf("walk %s: %w", path, err)
	}
	return nil
}

// list opens a directory, which is open as O_PATH, to be listed.
func list(fd int) (int, error) {
	return unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// read reads the next part of a listing; 0 is its end.
func (w *walk) read(dir int) (n int, err error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err = unix.Getdents(dir, w.buf)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil // removed since it was opened: nothing is in it
	}
	return n, err
}

// tree walks the directory dir, which it closes, and all below it. It goes
// down by name and up by "..", and goes on in a listing where it left it.
func (w *walk) tree(dir int, here level) error {
	defer func() { unix.Close(dir) }()
	for {
		n, err := w.read(dir)
		if err != nil {
			return err
		}
		down := -1
		for rest := w.buf[:n]; len(rest) > 0 && down < 0; {
			var e dirfd.Dirent
			if e, rest, err = dirfd.NextDirent(rest); err != nil {
				return err
			}
			before := here.at
			here.at = e.Next
			if e.Name == "." || e.Name == ".." {
				continue
			}
			var st unix.Stat_t
			if down, err = w.entry(dir, e.Name, &st); err != nil {
				return err
			}
			if down >= 0 {
				here.down = before
				w.levels = append(w.levels, here)
				here = level{file: fileOf(&st)}
			}
		}
		switch {
		case down >= 0:
			unix.Close(dir)
			dir = down
		case n > 0:
		case len(w.levels) == 0:
			return w.search.err()
		default:
			up, err := w.up(dir, here.file)
			if err != nil {
				return err
			}
			unix.Close(dir)
			dir = up
			here = w.levels[len(w.levels)-1]
			w.levels = w.levels[:len(w.levels)-1]
		}
	}
}

// entry visits one name of a directory; if it is a directory it is returned open.
func (w *walk) entry(dir int, name string, st *unix.Stat_t) (down int, err error) {
	fd, err := dirfd.Openat2(dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_XDEV|unix.RESOLVE_BENEATH)
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOENT):
		return -1, nil // mounted, or gone since
	case err != nil:
		return -1, err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, st); err != nil {
		return -1, err
	}
	if w.search.left[fileOf(st)] {
		return -1, nil
	}
	if err := w.visit(fd, st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return -1, nil
	}
	if down, err = list(fd); errors.Is(err, unix.ENOENT) {
		return -1, nil
	}
	return down, err
}

// up opens the directory above dir, whose walk has ended, to be listed further: the one
// the walk came from, or if dir is elsewhere by now, the deepest that is found again.
// The last of the levels is that directory's then.
func (w *walk) up(dir int, left file) (int, error) {
	fd, err := dirfd.Openat2(dir, "..", unix.O_RDONLY|unix.O_DIRECTORY, 0, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return -1, err
	}
	is, err := isFile(fd, w.levels[len(w.levels)-1].file)
	if err == nil && !is {
		unix.Close(fd)
		if fd, err = w.find(left); err != nil {
			return -1, err
		}
	}
	if err == nil {
		_, err = unix.Seek(fd, w.levels[len(w.levels)-1].at, 0)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func isFile(fd int, f file) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return err == nil && fileOf(&st) == f, err
}
