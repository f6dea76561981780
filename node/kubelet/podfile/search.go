package podfile

import (
	"golang.org/x/sys/unix"

	"knarr/internal/dirfd"
)

// maxSearch bounds how many parts of listings a walk reads to find directories again, and
// how many it remembers that were moved. Each costs who moves them a rename; without it
// one rename in deep and full directories would cost the walk as much each time.
const maxSearch = 1 << 16

// A search is what a walk remembers since directories were moved while it was below them.
type search struct {
	reads int
	// left are those whose walk has ended or is to go on. They are not visited where they
	// may be met again.
	left map[file]bool
	// lost says that a directory was not found whose walk had not ended.
	lost bool
}

func (s *search) err() error {
	if s.lost {
		return ErrMoved
	}
	return nil
}

// lose takes note of directories whose walk does not go on. If they are met again they
// are visited like others.
func (s *search) lose(levels []level) {
	s.lost = true
	for _, l := range levels {
		delete(s.left, l.file)
	}
}

// pass remembers a directory that is not to be visited again.
func (s *search) pass(f file) {
	if s.reads++; s.reads > maxSearch {
		return
	}
	if s.left == nil {
		s.left = map[file]bool{}
	}
	s.left[f] = true
}

// find opens the deepest of the levels that can be reached from the root through all
// above it, and cuts the levels there. The directory left is where the walk was.
func (w *walk) find(left file) (int, error) {
	w.search.pass(left)
	dir, err := list(w.root)
	if err != nil {
		return -1, err
	}
	i := 0
	for ; i+1 < len(w.levels); i++ {
		next, err := w.below(dir, w.levels[i].down, w.levels[i+1].file)
		if err != nil {
			unix.Close(dir)
			return -1, err
		}
		if next < 0 {
			w.search.lose(w.levels[i+1:])
			break
		}
		unix.Close(dir)
		dir = next
		w.search.pass(w.levels[i+1].file)
	}
	w.levels = w.levels[:i+1]
	return dir, nil
}

// below opens a directory that is in dir, or gives -1 if it is not or the search has
// become too long. Its entry is looked for where it was, and then, for it may have
// another name by now, in the whole listing.
func (w *walk) below(dir int, was int64, want file) (int, error) {
	fd, _, err := w.part(dir, was, want, true)
	if err != nil || fd >= 0 {
		return fd, err
	}
	for at := int64(0); err == nil && fd < 0 && at >= 0; {
		fd, at, err = w.part(dir, at, want, false)
	}
	return fd, err
}

// part looks for a directory in one part of the listing of dir. If it is not there, next
// is where the listing goes on; -1 is its end. Or it looks at the first entry only, and
// then whatever inode the listing names: on some file systems stat names another.
func (w *walk) part(dir int, at int64, want file, first bool) (fd int, next int64, err error) {
	if w.search.reads++; w.search.reads > maxSearch {
		return -1, -1, nil
	}
	if _, err := unix.Seek(dir, at, 0); err != nil {
		return -1, -1, err
	}
	n, err := w.read(dir)
	if err != nil || n == 0 {
		return -1, -1, err
	}
	for rest := w.buf[:n]; len(rest) > 0; {
		var e dirfd.Dirent
		if e, rest, err = dirfd.NextDirent(rest); err != nil {
			return -1, -1, err
		}
		next = e.Next
		if e.Name == "." || e.Name == ".." || e.Ino != want.ino && !first {
			continue
		}
		if fd := openSame(dir, e.Name, want); fd >= 0 || first {
			return fd, -1, nil
		}
	}
	return -1, next, nil
}

// openSame opens a name of dir to be listed, or gives -1 if it is not that directory.
func openSame(dir int, name string, want file) int {
	fd, err := dirfd.Openat2(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_XDEV|unix.RESOLVE_BENEATH)
	if err != nil {
		return -1 // moved or mounted on since
	}
	if is, err := isFile(fd, want); err != nil || !is {
		unix.Close(fd)
		return -1
	}
	return fd
}
