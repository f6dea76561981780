// Package answer is what versions of HTTP with streams have in common of an answer: the
// head that leaves with the first bytes, a length that is kept, small parts that are gathered,
// and a trailer. How it is put on the wire is each version's. It reads and writes nothing itself.
package answer

import (
	"errors"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// maxGather is how much of an answer is gathered before it is written.
const maxGather = 16 << 10

// A Wire puts an answer on a stream.
type Wire interface {
	// Informational writes a head of 1xx at once.
	Informational(status int, h http.Header)
	// Head makes the head, which the first Send takes along.
	Head(status int, h http.Header)
	// Send writes the head, the first time, and data. With end that was all.
	Send(data []byte, first, end bool) error
	// Trailer writes the fields after the body, and ends it.
	Trailer(fields iter.Seq2[string, string]) error
}

// An Answer is the http.ResponseWriter of a stream.
type Answer struct {
	wire            Wire
	header          http.Header
	head            bool // of a HEAD request
	wrote, bodyless bool
	sent            bool // the head was
	length, written int64
	buf             []byte
	failed          error
}

var (
	errTooMuch   = errors.New("more of a body than its length")
	errTooLittle = errors.New("less of a body than its length")
)

// Start begins an answer; h is its header. What the one before has gathered in is used again.
func (a *Answer) Start(w Wire, h http.Header, head bool) {
	if h == nil {
		h = http.Header{}
	}
	*a = Answer{wire: w, header: h, head: head, length: -1, buf: a.buf[:0]}
}

// Reset forgets everything but the memory.
func (a *Answer) Reset() {
	clear(a.header)
	*a = Answer{header: a.header, buf: a.buf[:0]}
}

// Sent says whether the head was sent.
func (a *Answer) Sent() bool { return a.sent }

// Failed says why the answer cannot be completed.
func (a *Answer) Failed() error { return a.failed }

// Header is of http.ResponseWriter.
func (a *Answer) Header() http.Header { return a.header }

// WriteHeader is of http.ResponseWriter.
func (a *Answer) WriteHeader(status int) {
	if a.wrote || status == http.StatusSwitchingProtocols {
		return
	}
	if status >= 100 && status < 200 {
		a.wire.Informational(status, a.header)
		return
	}
	a.wrote = true
	a.bodyless = a.head || status == http.StatusNoContent || status == http.StatusNotModified
	if v := a.header["Content-Length"]; len(v) > 0 {
		n, err := strconv.ParseInt(v[0], 10, 64)
		if err != nil || n < 0 || len(v) > 1 {
			delete(a.header, "Content-Length")
		} else {
			a.length = n
		}
	}
	a.wire.Head(status, a.header)
}

// Write is of http.ResponseWriter.
func (a *Answer) Write(b []byte) (int, error) {
	if !a.wrote {
		a.WriteHeader(http.StatusOK)
	}
	switch {
	case a.failed != nil:
		return 0, a.failed
	case a.bodyless || len(b) == 0:
		return len(b), nil
	case a.length >= 0 && a.written+int64(len(b)) > a.length:
		return 0, errTooMuch
	}
	a.written += int64(len(b))
	if len(a.buf)+len(b) > maxGather {
		a.send(a.buf, false)
		a.buf = a.buf[:0]
	}
	if len(b) <= maxGather {
		a.buf = append(a.buf, b...)
	} else {
		a.send(b, false)
	}
	return len(b), a.failed
}

// send writes data, the head before it.
func (a *Answer) send(data []byte, end bool) {
	if a.failed == nil {
		a.failed = a.wire.Send(data, !a.sent, end)
		a.sent = true
	}
}

// Flush is of http.Flusher.
func (a *Answer) Flush() {
	if !a.wrote {
		a.WriteHeader(http.StatusOK)
	}
	if !a.sent || len(a.buf) > 0 {
		a.send(a.buf, false)
		a.buf = a.buf[:0]
	}
}

// Finish completes the answer, by its trailer if it has one.
func (a *Answer) Finish() error {
	if !a.wrote {
		a.header["Content-Length"] = []string{"0"}
		a.WriteHeader(http.StatusOK)
	}
	if a.length >= 0 && !a.bodyless && a.written != a.length && a.failed == nil {
		a.failed = errTooLittle
		return a.failed
	}
	trailer := false
	for range a.trailer {
		trailer = true
		break
	}
	a.send(a.buf, !trailer)
	a.buf = a.buf[:0]
	if trailer && a.failed == nil {
		a.failed = a.wire.Trailer(a.trailer)
	}
	return a.failed
}

// Fields are those of a head: not those that belong to HTTP/1.1's connections, nor those of
// the trailer.
func Fields(h http.Header) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for name, values := range h {
			switch name {
			case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
				continue
			}
			if strings.HasPrefix(name, http.TrailerPrefix) {
				continue
			}
			for _, v := range values {
				if !yield(name, v) {
					return
				}
			}
		}
	}
}

// trailer are the fields after the body: those that are marked, and those that the head has
// announced.
func (a *Answer) trailer(yield func(name, value string) bool) {
	for name, values := range a.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			for _, v := range values {
				if !yield(name, v) {
					return
				}
			}
		}
	}
	for _, list := range a.header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if a.header[http.TrailerPrefix+name] != nil {
				continue
			}
			for _, v := range a.header[name] {
				if !yield(name, v) {
					return
				}
			}
		}
	}
}

type date struct {
	second int64
	text   string
}

var now atomic.Pointer[date]

// Date is the second that answers bear.
func Date() string {
	t := time.Now()
	if d := now.Load(); d != nil && d.second == t.Unix() {
		return d.text
	}
	d := &date{t.Unix(), t.UTC().Format(http.TimeFormat)}
	now.Store(d)
	return d.text
}
