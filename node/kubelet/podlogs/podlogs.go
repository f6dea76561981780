// Package podlogs reads and rotates the log files that runtimes write in the
// CRI format: a time, a stream, a tag that says whether a line goes on, and
// the text. It writes only when it rotates.
package podlogs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"knarr/internal/inotify"
	"knarr/node/kubelet/podfile"
)

// A Line is one record of a log.
type Line struct {
	Time    time.Time
	Stderr  bool
	Partial bool // the text goes on in the next record of the stream
	Text    []byte
}

var errFormat = errors.New("not in the CRI log format")

// Parse takes a record, without its newline, apart.
func Parse(raw []byte) (l Line, err error) {
	stamp, rest, ok := bytes.Cut(raw, []byte{' '})
	if !ok {
		return l, errFormat
	}
	if l.Time, err = time.Parse(time.RFC3339Nano, string(stamp)); err != nil {
		return l, errFormat
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return l, errFormat
	}
	switch string(stream) {
	case "stdout":
	case "stderr":
		l.Stderr = true
	default:
		return l, errFormat
	}
	tags, text, _ := bytes.Cut(rest, []byte{' '})
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	switch string(tag) {
	case "F":
	case "P":
		l.Partial = true
	default:
		return l, errFormat
	}
	l.Text = text
	return l, nil
}

// Options of a read.
type Options struct {
	// Follow waits for more until Running says no.
	Follow bool
	// Tail is how many records from the end to begin with; negative: all.
	Tail int64
	// Back is how many bytes from the end Tail looks back at most; 0: all.
	Back int64
	// Since leaves out what is older.
	Since time.Time
	// Timestamps puts the time before each line.
	Timestamps bool
	// Limit ends the read after so many bytes; negative: no limit.
	Limit int64
	// Running says whether the container still writes.
	Running func(context.Context) bool
}

// maxRecord bounds one record; runtimes split lines at 16 KiB.
const maxRecord = 1 << 20

// Read writes the text of a log to out and errw, either of which may be nil.
func Read(ctx context.Context, path string, o Options, out, errw io.Writer) error {
	f, err := open(path)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	if o.Tail >= 0 {
		at, err := tailOffset(ctx, f, o.Tail, o.Back)
		if err != nil {
			return err
		}
		if _, err := f.Seek(at, io.SeekStart); err != nil {
			return err
		}
	}
	var w *fsnotify.Watcher
	if o.Follow {
		if w, err = inotify.NewWatcher(); err != nil {
			return err
		}
		defer w.Close()
		if err := w.Add(filepath.Dir(path)); err != nil {
			return err
		}
	}
	s := &sink{o: o, out: out, err: errw, left: o.Limit}
	r := bufio.NewReaderSize(f, 32<<10)
	var partial []byte
	last := false
	for {
		if ctx.Err() != nil {
			return nil // nobody reads any more
		}
		raw, err := r.ReadSlice('\n')
		if len(raw) > 0 && (len(partial) > 0 || err != nil) {
			if len(partial)+len(raw) > maxRecord {
				return errors.New("a log record is too long")
			}
			partial = append(partial, raw...)
			raw = partial
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF:
			if !o.Follow || last {
				return nil
			}
			next, reopened, err := waitMore(ctx, w, path, f, o)
			if err != nil || ctx.Err() != nil {
				return err
			}
			if reopened != nil {
				// What was written between the last read and the rotation.
				rest, _ := io.ReadAll(io.LimitReader(f, maxRecord))
				for line := range bytes.Lines(append(partial, rest...)) {
					if done, err := s.line(bytes.TrimSuffix(line, []byte{'\n'})); done || err != nil {
						reopened.Close()
						return err
					}
				}
				f.Close()
				f, partial = reopened, nil
				r.Reset(f)
				continue
			}
			last = !next
			continue
		case err != nil:
			return err
		}
		done, err := s.line(bytes.TrimSuffix(raw, []byte{'\n'}))
		partial = partial[:0]
		if done || err != nil {
			return err
		}
	}
}

// waitMore waits until there may be more to read. more is false once the
// container has ended: one last read and it is done.
func waitMore(ctx context.Context, w *fsnotify.Watcher, path string, f *os.File, o Options) (more bool, reopened *os.File, err error) {
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	for {
		if n := reopen(path, f); n != nil {
			return true, n, nil
		}
		if o.Running != nil && !o.Running(ctx) {
			return false, nil, nil
		}
		select {
		case <-ctx.Done():
			return false, nil, nil
		case e, ok := <-w.Events:
			if !ok {
				return false, nil, nil
			}
			if filepath.Base(e.Name) != filepath.Base(path) {
				continue
			}
			return true, nil, nil
		case err, ok := <-w.Errors:
			if ok {
				return false, nil, err
			}
			return false, nil, nil
		case <-t.C:
			return true, nil, nil
		}
	}
}

// open opens a log. Runtimes keep it in a directory of the container, in one
// of the pod, in one for all pods; with the last two it is named by what may
// be a pod's own (a pod with the host's logs mounted), so no link is followed.
func open(path string) (*os.File, error) {
	container := filepath.Dir(path)
	pod := filepath.Dir(container)
	return podfile.Open(filepath.Dir(pod), filepath.Join(filepath.Base(pod), filepath.Base(container), filepath.Base(path)))
}

// reopen opens the log anew if another file has taken its place.
func reopen(path string, f *os.File) *os.File {
	n, err := open(path)
	if err != nil {
		return nil
	}
	a, err := n.Stat()
	if err == nil {
		var b os.FileInfo
		if b, err = f.Stat(); err == nil && !os.SameFile(a, b) {
			return n
		}
	}
	n.Close()
	return nil
}

type sink struct {
	o        Options
	out, err io.Writer
	left     int64
	buf      []byte
	going    [2]bool // a line of the stream goes on: no time before the rest
}

// line writes one record; done says that the limit is reached.
func (s *sink) line(raw []byte) (done bool, err error) {
	if len(raw) == 0 {
		return false, nil
	}
	l, err := Parse(raw)
	if err != nil {
		return false, nil // a record cut off by a crash says nothing
	}
	to, stream := s.out, 0
	if l.Stderr {
		to, stream = s.err, 1
	}
	going := s.going[stream]
	s.going[stream] = l.Partial
	if to == nil || !s.o.Since.IsZero() && l.Time.Before(s.o.Since) {
		return false, nil
	}
	s.buf = s.buf[:0]
	if s.o.Timestamps && !going {
		s.buf = l.Time.AppendFormat(s.buf, "2006-01-02T15:04:05.000000000Z07:00")
		s.buf = append(s.buf, ' ')
	}
	s.buf = append(s.buf, l.Text...)
	if !l.Partial {
		s.buf = append(s.buf, '\n')
	}
	if s.o.Limit >= 0 && int64(len(s.buf)) >= s.left {
		_, err := to.Write(s.buf[:s.left])
		return true, err
	}
	s.left -= int64(len(s.buf))
	_, err = to.Write(s.buf)
	return false, err
}

// tailOffset is where the last n records begin, looking back most bytes, or
// without a bound if most is 0.
func tailOffset(ctx context.Context, f *os.File, n, most int64) (int64, error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return end, err
	}
	first := int64(0)
	if most > 0 {
		first = max(end-most, 0)
	}
	buf := make([]byte, 16<<10)
	seen := int64(0)
	for pos := end; pos > first; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		size := min(int64(len(buf)), pos-first)
		pos -= size
		if _, err := f.ReadAt(buf[:size], pos); err != nil && err != io.EOF {
			return 0, err
		}
		for i := size - 1; i >= 0; i-- {
			if buf[i] != '\n' || pos+i == end-1 {
				continue
			}
			if seen++; seen == n {
				return pos + i + 1, nil
			}
		}
	}
	return first, nil
}

// tailTime bounds the reading of a log's end.
const tailTime = 5 * time.Second

// Tail is the text at the end of a log: at most so many lines and bytes.
func Tail(path string, lines, most int64) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tailTime)
	defer cancel()
	b := lastBytes{most: int(most)}
	err := Read(ctx, path, Options{Tail: lines, Back: 2 * maxRecord, Limit: -1}, &b, &b)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return "", err
	}
	return string(b.text), nil
}

// lastBytes keeps the last bytes that are written to it.
type lastBytes struct {
	most int
	text []byte
}

func (b *lastBytes) Write(p []byte) (int, error) {
	n := len(p)
	p = p[max(n-b.most, 0):]
	if over := len(b.text) + len(p) - b.most; over > 0 {
		b.text = append(b.text[:0], b.text[over:]...)
	}
	b.text = append(b.text, p...)
	return n, nil
}
