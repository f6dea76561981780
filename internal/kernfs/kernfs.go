// Package kernfs reads the kernel's small files of numbers, as control groups and /proc
// have them, with few system calls and no allocations: a node reads thousands a minute.
package kernfs

import (
	"bytes"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// Small holds every file of numbers but lists, in bytes.
const Small = 16 << 10

// A Reader reads one file after the other into one buffer. It is for one goroutine.
type Reader struct{ buf []byte }

// NewReader has a buffer for small files, which grows with longer ones.
func NewReader() Reader { return Reader{make([]byte, Small)} }

// File reads up to most bytes of a file into the reader's buffer; nil if it cannot
// be read. The content is valid until the next call.
func (r *Reader) File(name string, most int) []byte {
	f, err := open(name)
	if err != nil {
		return nil
	}
	defer f.close()
	n := 0
	for {
		if n == len(r.buf) {
			if n >= most {
				return r.buf[:most]
			}
			r.buf = append(r.buf, make([]byte, min(len(r.buf), most-n))...)
		}
		got, err := f.read(r.buf[n:min(len(r.buf), most)])
		if err != nil {
			return nil
		}
		if got == 0 {
			return r.buf[:n]
		}
		n += got
	}
}

// Number reads a file of one number; max is the largest there is.
func (r *Reader) Number(name string) (uint64, bool) {
	word, _ := NextWord(r.File(name, Small))
	if string(word) == "max" {
		return 1<<64 - 1, true
	}
	n, err := ParseUint(word)
	return n, err == nil
}

// Value is Number without the question whether there is one.
func (r *Reader) Value(name string) uint64 {
	n, _ := r.Number(name)
	return n
}

// Table reads a file of lines of a name and a number; false if it cannot be read.
func (r *Reader) Table(name string, each func(key []byte, value uint64)) bool {
	b := r.File(name, Small)
	for rest := b; len(rest) > 0; {
		var line []byte
		line, rest = NextLine(rest)
		key, tail := NextWord(line)
		word, _ := NextWord(tail)
		if n, err := ParseUint(word); err == nil {
			each(key, n)
		}
	}
	return b != nil
}

// NextLine is what stands before the next end of a line.
func NextLine(b []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(b, []byte{'\n'})
	return line, rest
}

// NextWord is what stands before the next space or the end of the line.
func NextWord(b []byte) (word, rest []byte) {
	b = bytes.TrimLeft(b, " \t")
	if i := bytes.IndexAny(b, " \t\n"); i >= 0 {
		return b[:i], b[i+1:]
	}
	return b, nil
}

// ParseUint reads a decimal number.
func ParseUint(b []byte) (uint64, error) { return strconv.ParseUint(string(b), 10, 64) }

// A file is read without the poller of the runtime, which a file of the kernel's
// does not need: half the system calls.
type file int

func open(name string) (file, error) {
	for {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return file(fd), err
		}
	}
}

func (f file) read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(f), b)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func (f file) close() { _ = unix.Close(int(f)) }
