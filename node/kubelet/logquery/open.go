package logquery

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"knarr/internal/dirfd"
)

// A directory is where logs lie. Whatever is opened lies below it: names and
// links that lead out of it are refused.
type directory string

var (
	errEscapes = errors.New("path escapes from parent")
	errNotALog = errors.New("neither a regular file nor a directory")
)

// open opens a regular file or a directory. It looks before it opens: to open a
// device acts on it, and to open a FIFO waits.
func (d directory) open(name string) (*os.File, fs.FileInfo, error) {
	path := filepath.Join(string(d), name)
	fail := func(err error) (*os.File, fs.FileInfo, error) {
		return nil, nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	top, err := dirfd.Open(string(d))
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(top)
	below := strings.TrimLeft(name, "/")
	if below == "" {
		below = "."
	}
	at, err := dirfd.Openat2(top, below, unix.O_PATH, 0, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS)
	switch {
	case errors.Is(err, unix.EXDEV):
		return fail(errEscapes)
	case err != nil:
		return fail(err)
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return fail(err)
	}
	flags := unix.O_RDONLY | unix.O_NOCTTY | unix.O_CLOEXEC
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		flags |= unix.O_NONBLOCK
	case unix.S_IFDIR:
		flags |= unix.O_DIRECTORY
	default:
		return fail(errNotALog)
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(at), flags, 0)
	if err != nil {
		return fail(err)
	}
	f := os.NewFile(uintptr(fd), path)
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return fail(err)
	}
	return f, info, nil
}
