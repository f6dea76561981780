package http1

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// A requestBody is the body of a client's request.
type requestBody struct {
	body
	c       *conn
	w       *work
	expects bool // the client waits for 100 before it sends
	mu      sync.Mutex
	closed  bool
	// announced is the request's trailer, with the names that its head says.
	announced http.Header
	reading   bool
}

var errBodyClosed = errors.New("the body was closed")

func (b *requestBody) start(c *conn, w *work, kind int, length int64, expects bool) {
	*b = requestBody{c: c, w: w, expects: expects}
	b.body.start(&w.reader, kind, length)
}

// announce reads the names of a trailer that follows a chunked body.
func announce(h http.Header) (trailer http.Header) {
	for _, list := range h["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if name == "" || strings.Contains(name, "_") || slices.Contains(notInTrailers, name) || len(trailer) == 32 {
				continue
			}
			if trailer == nil {
				trailer = http.Header{}
			}
			trailer[name] = nil
		}
	}
	return trailer
}

// wait is the reader's while the body is read.
func (b *requestBody) wait(since time.Time) error {
	if err := b.c.ctx.Err(); err != nil {
		return err
	}
	if time.Since(since) > bodyTime {
		return errSlow
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errBodyClosed
	}
	return nil
}

// Read reads of the client, which is asked to send first if it waits for that.
func (b *requestBody) Read(into []byte) (int, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return 0, errBodyClosed
	}
	b.reading = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.reading = false
		b.mu.Unlock()
	}()
	if b.expects {
		b.expects = false
		if !b.w.w.wroteHead {
			if _, err := io.WriteString(b.c.nc, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return 0, err
			}
		}
	}
	b.w.reader.waiter = b
	n, err := b.read(into)
	if err == io.EOF {
		trailer := b.trailers()
		for name := range b.announced {
			b.announced[name] = trailer[name]
		}
	}
	return n, err
}

// Close ends a Read that waits. What is left of the body ends the connection.
func (b *requestBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.reading {
		_ = b.c.nc.SetReadDeadline(time.Unix(1, 0))
	}
	return nil
}

// discard reads a rest that is short, and reports whether the body's end was reached.
func (b *requestBody) discard() bool {
	if b.ended() {
		return true
	}
	if b.closed || b.expects || b.err != nil || b.kind == bodyLength && b.left > maxDiscard {
		return false
	}
	b.w.reader.waiter = lingering{}
	buf := readBuffers.Get().(*[]byte)
	defer readBuffers.Put(buf)
	for read := 0; read < maxDiscard; {
		n, err := b.read(*buf)
		read += n
		if err != nil {
			return err == io.EOF
		}
	}
	return false
}

// lingering is the waiter for bytes that nobody wants.
type lingering struct{}

func (lingering) wait(since time.Time) error {
	if time.Since(since) > lingerTime {
		return errSlow
	}
	return nil
}

var _ io.ReadCloser = (*requestBody)(nil)
var _ http.ResponseWriter = (*response)(nil)
