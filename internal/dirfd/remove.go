package dirfd

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxDepth is how many directories a removal holds open. What lies deeper is
// first moved up.
const maxDepth = 64

// RemoveAll removes path and all that is below it. Something mounted below is
// an error, and is not entered. However deep a container nested directories,
// few are open at a time.
func RemoveAll(ctx context.Context, path string) error {
	parent, err := Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if err := RemoveAllAt(ctx, parent, filepath.Base(path)); err != nil {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// RemoveAllAt is RemoveAll of a name in a directory that is open.
func RemoveAllAt(ctx context.Context, dir int, name string) error {
	r := remover{ctx: ctx, top: -1}
	return r.remove(dir, name, 0)
}

type remover struct {
	ctx   context.Context
	top   int // the directory that is emptied
	moved int
}

func (r *remover) remove(dir int, name string, depth int) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EBUSY) {
		return err
	}
	if depth > maxDepth {
		return r.moveUp(dir, name)
	}
	why := err
	for range maxRaces {
		if err = r.removeDir(dir, name, depth); !errors.Is(err, unix.ENOTEMPTY) {
			break // else a name came after the listing
		}
	}
	if errors.Is(err, unix.ENOTDIR) {
		return why // of a file, which may be immutable
	}
	return err
}

// moveUp moves a directory to the one that is emptied.
func (r *remover) moveUp(dir int, name string) error {
	for mixed := false; ; {
		err := unix.Renameat2(dir, name, r.top, ".removing-"+strconv.Itoa(r.moved), unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EEXIST):
			r.moved++
		case errors.Is(err, unix.EXDEV) && !mixed:
			if err := mixProjects(r.top); err != nil {
				return err
			}
			mixed = true
		default:
			return err
		}
	}
}

// mixProjects lets directories of other projects be moved into this one: it does
// not give what is in it its own project any more. Whoever owns a directory may
// have changed the project of it.
func mixProjects(dir int) error {
	const inherits = 0x20000000 // FS_PROJINHERIT_FL
	flags, err := unix.IoctlGetInt(dir, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	return unix.IoctlSetPointerInt(dir, unix.FS_IOC_SETFLAGS, flags&^inherits)
}

func (r *remover) removeDir(dir int, name string, depth int) error {
	child, err := Openat2(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_XDEV|unix.RESOLVE_BENEATH)
	if err != nil {
		return err
	}
	if depth == 0 {
		r.top = child
	}
	err = r.empty(child, depth)
	unix.Close(child)
	if err != nil {
		return err
	}
	if err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// empty removes what is in dir, listing it anew until nothing is left.
func (r *remover) empty(dir, depth int) error {
	buf := make([]byte, 8<<10)
	for {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		if _, err := unix.Seek(dir, 0, 0); err != nil {
			return err
		}
		n, err := unix.Getdents(dir, buf)
		if err != nil {
			return err
		}
		left := false
		for rest := buf[:n]; len(rest) > 0; {
			var e Dirent
			if e, rest, err = NextDirent(rest); err != nil {
				return err
			}
			if e.Name == "." || e.Name == ".." {
				continue
			}
			left = true
			if err := r.remove(dir, e.Name, depth+1); err != nil {
				return err
			}
		}
		if !left {
			return nil
		}
	}
}
