package podfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"knarr/internal/dirfd"
)

// Walk visits a file, or a directory and all that is below it, each before
// what is in it. What is mounted below is not visited, nor asked. A visit gets
// the file as an O_PATH descriptor, so that it acts on what was looked at. A
// container decides how many files there are and how deep they lie: the walk
// holds three descriptors at most, and 24 bytes for each level.
func Walk(ctx context.Context, path string, visit func(fd int, st *unix.Stat_t) error) error {
	w := walk{ctx: ctx, visit: visit}
	return w.begin(path)
}

type walk struct {
	ctx    context.Context
	visit  func(fd int, st *unix.Stat_t) error
	levels []level
}

// A level is a directory the walk will come back to.
type level struct {
	dev, ino uint64
	at       int64 // where its listing goes on
}

func (w *walk) begin(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	err = w.visit(fd, &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		unix.Close(fd)
		return err
	}
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	unix.Close(fd)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err := w.tree(dir, level{dev: st.Dev, ino: st.Ino}); err != nil {
		return fmt.Errorf("walk %s: %w", path, err)
	}
	return nil
}

// tree walks the directory dir, which it closes, and all below it. It goes
// down by name and up by "..", and goes on in a listing where it left it.
func (w *walk) tree(dir int, here level) error {
	defer func() { unix.Close(dir) }()
	buf := make([]byte, 32<<10)
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		n, err := unix.Getdents(dir, buf)
		if err != nil {
			return err
		}
		down := -1
		for rest := buf[:max(n, 0)]; len(rest) > 0 && down < 0; {
			var e dirfd.Dirent
			if e, rest, err = dirfd.NextDirent(rest); err != nil {
				return err
			}
			if e.Name == "." || e.Name == ".." {
				continue
			}
			var st unix.Stat_t
			if down, err = w.entry(dir, e.Name, &st); err != nil {
				return err
			}
			if down >= 0 {
				here.at = e.Next
				w.levels = append(w.levels, here)
				here = level{dev: st.Dev, ino: st.Ino}
			}
		}
		switch {
		case down >= 0:
			unix.Close(dir)
			dir = down
		case n > 0:
		case len(w.levels) == 0:
			return nil
		default:
			up, err := w.up(dir)
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
	if err := w.visit(fd, st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return -1, nil
	}
	return unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

var errMoved = errors.New("a directory was moved meanwhile")

// up opens the directory above dir, if that is where the walk came from.
func (w *walk) up(dir int) (int, error) {
	l := w.levels[len(w.levels)-1]
	fd, err := dirfd.Openat2(dir, "..", unix.O_RDONLY|unix.O_DIRECTORY, 0, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (st.Dev != l.dev || st.Ino != l.ino) {
		err = errMoved
	}
	if err == nil {
		_, err = unix.Seek(fd, l.at, 0)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
