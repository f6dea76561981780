// Package dirfd opens, lists and removes files relative to directories that are
// open, so that whoever changes names meanwhile leads nowhere else. It reads and
// writes below the directories it is given.
package dirfd

import (
	"encoding/binary"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Open opens a directory whose own path only the node writes, as O_PATH.
func Open(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return fd, nil
}

// maxRaces bounds how often a walk that met a rename is started again.
const maxRaces = 128

// Openat2 is openat2(2), once more where a rename or a signal came between.
func Openat2(dir int, name string, flags, mode, resolve uint64) (fd int, err error) {
	for range maxRaces {
		fd, err = unix.Openat2(dir, name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Mode: mode, Resolve: resolve})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return fd, err
}

// A Dirent is one entry of a listing; Next is where the listing goes on after it.
type Dirent struct {
	Ino  uint64
	Name string
	Next int64
}

var errDirent = errors.New("invalid directory entry")

// NextDirent reads one linux_dirent64: inode (8 bytes), offset of the next
// (8), length (2), type (1), and the name, which a zero ends.
func NextDirent(b []byte) (e Dirent, rest []byte, err error) {
	const head = 19
	if len(b) < head {
		return e, nil, errDirent
	}
	size := int(binary.NativeEndian.Uint16(b[16:]))
	if size < head || size > len(b) {
		return e, nil, errDirent
	}
	e.Ino = binary.NativeEndian.Uint64(b)
	e.Next = int64(binary.NativeEndian.Uint64(b[8:]))
	name := b[head:size]
	for i, c := range name {
		if c == 0 {
			name = name[:i]
			break
		}
	}
	e.Name = string(name)
	return e, b[size:], nil
}
