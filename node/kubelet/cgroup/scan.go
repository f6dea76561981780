package cgroup

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"
)

// A rawFile is read without the poller of the runtime, which a file of the kernel's
// does not need: half the system calls.
type rawFile int

func openRaw(name string) (rawFile, error) {
	for {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return rawFile(fd), err
		}
	}
}

func (f rawFile) read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(f), b)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func (f rawFile) close() { _ = unix.Close(int(f)) }

func nextLine(b []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(b, []byte{'\n'})
	return line, rest
}

// nextWord is what stands before the next space or the end of the line.
func nextWord(b []byte) (word, rest []byte) {
	b = bytes.TrimLeft(b, " \t")
	if i := bytes.IndexAny(b, " \t\n"); i >= 0 {
		return b[:i], b[i+1:]
	}
	return b, nil
}
