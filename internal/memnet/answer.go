package memnet

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"knarr/internal/run"
)

// worthwhile is how much of an answer its reader is woken for without a flush, bytes.
const worthwhile = 4 << 10

type body = io.ReadCloser

// An answer is the http.ResponseWriter of a request within the process at one end, and
// the body of its response at the other. What is written waits for the reader, up to
// chunk bytes; then the writer waits.
type answer struct {
	header http.Header // the handler's
	head   bool        // the request is a HEAD: what is written goes nowhere
	letGo  func()      // of the contexts of its request

	mu       sync.Mutex
	moved    sync.Cond     // more to read, more room, or the end
	started  chan struct{} // closed once the reader may know of it
	code     int           // 0: not begun
	sent     http.Header   // as it was then
	buf      []byte
	off      int
	flushed  int       // bytes of buf that the reader may have
	deadline time.Time // of the writer; the zero time: none
	alarm    *time.Timer
	closed   bool  // the reader wants no more
	err      error // how it ended: io.EOF if well; nil: it has not
}

func newAnswer(method string) *answer {
	a := &answer{header: http.Header{}, head: method == http.MethodHead, started: make(chan struct{})}
	a.moved.L = &a.mu
	return a
}

// serve has h answer r. A panic breaks the answer off.
func (a *answer) serve(h http.Handler, r *http.Request) {
	defer func() {
		switch p := recover(); p {
		case nil:
			a.end(io.EOF)
		case http.ErrAbortHandler:
			a.end(io.ErrUnexpectedEOF)
		default:
			a.end(io.ErrUnexpectedEOF)
			panic(p)
		}
	}()
	h.ServeHTTP(a, r)
}

// response waits for the answer's begin.
func (a *answer) response(req *http.Request) (*http.Response, error) {
	<-a.started
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.code == 0 || a.err != nil && a.err != io.EOF && a.flushed == a.off {
		err := a.err
		if err == io.ErrUnexpectedEOF {
			err = io.EOF // what a connection that is closed without a word gives
		}
		a.letGo()
		return nil, err
	}
	length := int64(-1)
	if n, err := strconv.ParseInt(a.sent.Get("Content-Length"), 10, 64); err == nil {
		length = n
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.code, http.StatusText(a.code)), StatusCode: a.code,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.sent, ContentLength: length, Body: reader{a}, Request: req,
	}, nil
}

// Header is what WriteHeader sends.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader begins the answer. Those of status 1xx are not passed on.
func (a *answer) WriteHeader(code int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if code >= 200 {
		a.begin(code)
	}
}

func (a *answer) begin(code int) {
	if a.code == 0 {
		a.code, a.sent = code, a.header.Clone()
	}
}

// Write adds to the body, and waits while the reader has too much to read already.
func (a *answer) Write(p []byte) (n int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.code == 0 {
		if a.header.Get("Content-Type") == "" {
			a.header.Set("Content-Type", http.DetectContentType(p))
		}
		a.begin(http.StatusOK)
	}
	switch {
	case a.head:
		return len(p), nil
	case a.code == http.StatusNoContent || a.code == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	}
	defer a.disarm()
	for len(p) > 0 {
		if err := a.writable(); err != nil {
			return n, err
		}
		room := chunk - (len(a.buf) - a.off)
		if room <= 0 {
			a.wait()
			continue
		}
		k := min(room, len(p))
		if a.off > 0 && len(a.buf)+k > cap(a.buf) {
			a.flushed -= a.off
			a.buf = a.buf[:copy(a.buf, a.buf[a.off:])]
			a.off = 0
		}
		a.buf = append(a.buf, p[:k]...)
		p, n = p[k:], n+k
		if len(a.buf)-a.flushed >= worthwhile {
			a.show()
		}
	}
	return n, nil
}

// writable is why no more can be written, or nil.
func (a *answer) writable() error {
	switch {
	case a.closed:
		return io.ErrClosedPipe
	case a.err != nil:
		return a.err
	case !a.deadline.IsZero() && !time.Now().Before(a.deadline):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// wait waits for the reader or the deadline, which needs a timer only here.
func (a *answer) wait() {
	if a.alarm == nil && !a.deadline.IsZero() {
		a.alarm = run.AfterFunc("request within the process: deadline", time.Until(a.deadline), func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.moved.Broadcast()
		})
	}
	a.moved.Wait()
}

func (a *answer) disarm() {
	if a.alarm != nil {
		a.alarm.Stop()
		a.alarm = nil
	}
}

// show lets the reader have what is written.
func (a *answer) show() {
	a.flushed = len(a.buf)
	a.start()
	a.moved.Broadcast()
}

func (a *answer) start() {
	select {
	case <-a.started:
	default:
		close(a.started)
	}
}

// FlushError begins the answer, if nobody has, and lets the reader have it.
func (a *answer) FlushError() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.writable(); err != nil {
		return err
	}
	a.begin(http.StatusOK)
	a.show()
	return nil
}

// Flush is FlushError.
func (a *answer) Flush() { _ = a.FlushError() }

// SetWriteDeadline bounds how long Write waits for the reader.
func (a *answer) SetWriteDeadline(t time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deadline = t
	a.disarm()
	a.moved.Broadcast() // whoever waits looks at it anew
	return nil
}

// SetReadDeadline does nothing: the body of a request within the process is there.
func (a *answer) SetReadDeadline(time.Time) error { return nil }

// end ends it, after what is written.
func (a *answer) end(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return
	}
	if err == io.EOF {
		a.begin(http.StatusOK)
	}
	a.err = err
	a.show()
}

// fail ends it with what is written unread. An answer that has ended is left as it is.
func (a *answer) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err, a.buf, a.off = err, nil, 0
		a.show()
	}
}

// A reader is the body of an answer.
type reader struct{ a *answer }

// Read is io.ErrUnexpectedEOF at the end of an answer that was broken off, and the
// context's error once the request's has ended.
func (r reader) Read(p []byte) (int, error) {
	a := r.a
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.off >= a.flushed {
		switch {
		case a.closed:
			return 0, http.ErrBodyReadAfterClose
		case a.err != nil:
			a.letGo()
			return 0, a.err
		case len(p) == 0:
			return 0, nil
		}
		a.moved.Wait()
	}
	n := copy(p, a.buf[a.off:a.flushed])
	a.off += n
	if a.off == len(a.buf) {
		a.off, a.flushed, a.buf = 0, 0, a.buf[:0]
		if cap(a.buf) > 2*worthwhile {
			a.buf = nil // a watch keeps no large buffer while it waits
		}
	}
	a.moved.Broadcast()
	return n, nil
}

// Close ends the request, if it has not ended.
func (r reader) Close() error {
	a := r.a
	a.mu.Lock()
	a.closed, a.buf, a.off, a.flushed = true, nil, 0, 0
	a.moved.Broadcast()
	a.mu.Unlock()
	a.letGo()
	return nil
}
