package dataplane

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxLogFile is how long an access log gets until it is put aside, and oldLogFiles how many
	// of those are kept, under the names PATH.1 (the youngest) and so on.
	maxLogFile  = 100 << 20
	oldLogFiles = 3
)

// AccessFormats are the forms of an access log.
var AccessFormats = []string{"json", "common"}

// ParseAccessLog reads FORMAT:PATH; the path is absolute, or stdout.
func ParseAccessLog(text string) (format, path string, err error) {
	format, path, _ = strings.Cut(text, ":")
	switch {
	case format != AccessFormats[0] && format != AccessFormats[1]:
		return "", "", fmt.Errorf("%q is not of the form json:PATH or common:PATH", text)
	case path != "stdout" && !filepath.IsAbs(path):
		return "", "", fmt.Errorf("%q is neither an absolute path nor stdout", path)
	}
	return format, path, nil
}

// A logFile is a file that lines are appended to. Only one goroutine writes.
type logFile struct {
	path string
	most int64
	file *os.File
	size int64
}

// OpenLog opens the file of an access log, or this process' standard output.
func OpenLog(path string) (io.WriteCloser, error) {
	if path == "stdout" {
		return struct {
			io.Writer
			io.Closer
		}{os.Stdout, io.NopCloser(nil)}, nil
	}
	l := &logFile{path: path, most: maxLogFile}
	return l, l.open()
}

// open opens the file, and nothing else that may stand in its place: not a link, nor a pipe
// that nobody reads.
func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", l.path)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.file, l.size = f, st.Size()
	return nil
}

// Write appends whole lines, to a new file once the old one is long.
func (l *logFile) Write(lines []byte) (int, error) {
	if l.size > 0 && l.size+int64(len(lines)) > l.most {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	if l.file == nil {
		if err := l.open(); err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(lines)
	l.size += int64(n)
	return n, err
}

// rotate puts the file aside, and removes the oldest one.
func (l *logFile) rotate() error {
	if err := l.Close(); err != nil {
		return err
	}
	for i := oldLogFiles; i > 0; i-- {
		from := l.path
		if i > 1 {
			from = fmt.Sprintf("%s.%d", l.path, i-1)
		}
		if err := os.Rename(from, fmt.Sprintf("%s.%d", l.path, i)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	l.size = 0
	return l.open()
}

// Close closes the file; a Write opens it again.
func (l *logFile) Close() error {
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	return f.Close()
}
