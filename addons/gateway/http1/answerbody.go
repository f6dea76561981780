package http1

import (
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"knarr/internal/run"
)

// An answerBody is the body of an endpoint's answer.
type answerBody struct {
	body
	c      *backConn
	closed bool
}

func (b *answerBody) Read(into []byte) (int, error) {
	if b.closed {
		return 0, errBodyClosed
	}
	n, err := b.read(into)
	if err == io.EOF {
		b.c.response.Trailer = b.trailers()
	} else if err != nil {
		err = b.c.cause(err)
	}
	return n, err
}

// Buffered is how much of the body, or of what frames it, can be read at once without
// waiting.
func (b *answerBody) Buffered() int {
	n := b.r.to - b.r.from
	if b.kind == bodyChunked && b.left == 0 && b.inChunk {
		n -= len("\r\n") // which ends the chunk that was read
	}
	return max(n, 0)
}

func (b *answerBody) Close() error {
	if !b.closed {
		b.closed = true
		b.c.end(b.ended())
	}
	return nil
}

// A sending is a request's body on its way to the endpoint while the answer is read.
type sending struct {
	c    *backConn
	body io.ReadCloser
	done chan struct{}
	mu   sync.Mutex
	err  error // of the client's side
	ok   bool  // all of it was sent
}

func (c *backConn) send(r *http.Request) *sending {
	s := &sending{c: c, body: r.Body, done: make(chan struct{})}
	chunked := r.ContentLength < 0
	run.Go("gateway request body", func() {
		defer close(s.done)
		if err := run.Catch("gateway request body", func() error { s.copy(r, chunked); return nil }); err != nil {
			s.fail(err)
		}
	})
	return s
}

var sendBuffers = sync.Pool{New: func() any { return new(make([]byte, 32<<10)) }}

func (s *sending) copy(r *http.Request, chunked bool) {
	holder := sendBuffers.Get().(*[]byte)
	defer sendBuffers.Put(holder)
	const room = 20 // for a chunk's size, and its end
	buf, left := *holder, r.ContentLength
	for {
		n, err := s.body.Read(buf[room : len(buf)-room])
		if n > 0 {
			part := buf[room : room+n]
			if chunked {
				size := strconv.AppendInt(buf[:0:room], int64(n), 16)
				size = append(size, "\r\n"...)
				begin := room - len(size)
				copy(buf[begin:], size)
				part = append(buf[begin:room+n], "\r\n"...)
			} else if left -= int64(n); left < 0 {
				err = errTooMuch
				s.fail(err)
				return
			}
			if s.c.write(part) != nil {
				return // the endpoint answers without reading all, or is gone
			}
			s.c.sentAt.Store(time.Now().UnixNano())
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			s.fail(err)
			return
		}
	}
	if chunked {
		end := append(buf[:0], "0\r\n"...)
		for name, values := range r.Trailer {
			end = appendField(end, name, values)
		}
		if s.c.write(append(end, "\r\n"...)) != nil {
			return
		}
	} else if left > 0 {
		s.fail(io.ErrUnexpectedEOF)
		return
	}
	s.c.sentAt.Store(time.Now().UnixNano())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ok = true
}

// fail ends the request because its body broke off.
func (s *sending) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	_ = s.c.nc.SetReadDeadline(time.Unix(1, 0))
	_ = s.c.nc.Close()
}

func (s *sending) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// finish ends the sending and reports whether all was sent, and the connection can be used on.
func (s *sending) finish() bool {
	select {
	case <-s.done:
	default:
		_ = s.c.nc.Close()
		_ = s.body.Close()
		<-s.done
		return false // also if all was sent meanwhile: the connection is closed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ok
}

// An upgraded is a connection that speaks another protocol now.
type upgraded struct{ c *backConn }

func (u *upgraded) Read(b []byte) (int, error) {
	r := &u.c.reader
	if r.from < r.to {
		n := copy(b, r.unread())
		r.from += n
		return n, nil
	}
	return u.c.nc.Read(b)
}

func (u *upgraded) Write(b []byte) (int, error) { return u.c.nc.Write(b) }

func (u *upgraded) Close() error { return u.c.nc.Close() }

// CloseWrite ends the sending side.
func (u *upgraded) CloseWrite() error {
	if half, ok := u.c.nc.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return u.c.nc.Close()
}

var _ http.RoundTripper = (*Pool)(nil)
