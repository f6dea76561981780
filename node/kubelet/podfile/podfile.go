// Package podfile opens, reads, writes, measures and removes files that a
// container can write to. It follows no links, waits for no FIFO, opens no
// device, enters no file system mounted below, and reads no more than it is
// told. It reads and writes below the directories it is given.
package podfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"knarr/internal/dirfd"
)

var (
	// ErrNotRegular is the error for a link, a FIFO, a device, a socket or a directory.
	ErrNotRegular = errors.New("not a regular file")
	// ErrTooLarge is the error for a file larger than may be read.
	ErrTooLarge = errors.New("file is too large")
)

const (
	// beneath lets nothing in the name lead elsewhere.
	beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV
	// within resolves links as a process would whose root is the directory.
	within = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV
)

// Open opens the regular file name below dir, a directory whose own path only
// the node writes.
func Open(dir, name string) (*os.File, error) { return open(dir, name, beneath) }

// OpenWithin is Open for volumes, in which links are usual: they are resolved
// with dir as the root.
func OpenWithin(dir, name string) (*os.File, error) { return open(dir, name, within) }

// Read reads the regular file name below dir, which has at most most bytes.
func Read(dir, name string, most int64) ([]byte, error) {
	f, err := Open(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, most)
}

// Tail reads the last most bytes of the regular file name below dir.
func Tail(dir, name string, most int64) ([]byte, error) {
	f, err := Open(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(end-most, 0), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// ReadHost reads a file of the node's own, such as /etc/hosts, which may be a
// link. It has at most most bytes.
func ReadHost(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: ErrNotRegular}
	}
	return ReadAll(f, most)
}

// ReadAll reads the rest of f, which has at most most bytes. What the file
// says of its size decides nothing.
func ReadAll(f *os.File, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > most {
		return nil, &fs.PathError{Op: "read", Path: f.Name(), Err: ErrTooLarge}
	}
	return b, nil
}

// Write makes data the whole content of the file name below dir. A regular
// file is written in place, so that containers which have it mounted see it;
// what else may be there is removed first.
func Write(dir, name string, data []byte, mode fs.FileMode) error {
	parent, err := dirfd.Open(dir)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	f, err := openAt(parent, dir, name, unix.O_WRONLY, beneath)
	if errors.Is(err, ErrNotRegular) {
		if err := unix.Unlinkat(parent, name, 0); err != nil {
			return &fs.PathError{Op: "remove", Path: filepath.Join(dir, name), Err: err}
		}
		err = fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		var fd int
		fd, err = dirfd.Openat2(parent, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, uint64(mode.Perm()), beneath)
		if err != nil {
			return &fs.PathError{Op: "create", Path: filepath.Join(dir, name), Err: err}
		}
		f = os.NewFile(uintptr(fd), filepath.Join(dir, name))
	} else if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Chmod(mode) // past the umask, and what a container made of it
}

// Same says whether the regular file name below dir holds just data.
func Same(dir, name string, data []byte) bool {
	have, err := Read(dir, name, int64(len(data)))
	return err == nil && string(have) == string(data)
}

func open(dir, name string, resolve uint64) (*os.File, error) {
	parent, err := dirfd.Open(dir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(parent)
	return openAt(parent, dir, name, unix.O_RDONLY, resolve)
}

// openAt looks at the file before it opens it: opening a device acts on it,
// and opening a FIFO waits.
func openAt(parent int, dir, name string, flags uint64, resolve uint64) (*os.File, error) {
	path := filepath.Join(dir, name)
	var nofollow uint64
	if resolve&unix.RESOLVE_NO_SYMLINKS != 0 {
		nofollow = unix.O_NOFOLLOW // a link itself is opened, and refused below
	}
	at, err := dirfd.Openat2(parent, name, unix.O_PATH|nofollow, 0, resolve)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(at), int(flags)|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// RemoveAll removes path and all that is below it. Something mounted below is
// an error, and is not entered. However deep a container nested directories,
// few are open at a time.
func RemoveAll(ctx context.Context, path string) error { return dirfd.RemoveAll(ctx, path) }

// IsMount says whether something is mounted at path, without asking the file
// system that is mounted there, which may never answer.
func IsMount(path string) (bool, error) {
	parent, err := dirfd.Open(filepath.Dir(path))
	if err != nil {
		return false, err
	}
	defer unix.Close(parent)
	fd, err := dirfd.Openat2(parent, filepath.Base(path), unix.O_PATH|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_XDEV)
	if errors.Is(err, unix.EXDEV) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", path, err)
	}
	unix.Close(fd)
	return false, nil
}
