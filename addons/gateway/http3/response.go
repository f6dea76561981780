package http3

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"
)

// maxGather is how much of an answer is gathered before it is written.
const maxGather = 16 << 10

// A response is the answer to a request. Its head leaves together with the first bytes.
type response struct {
	st       *quic.Stream
	header   http.Header
	isHead   bool // of a HEAD request
	status   int  // 0 until there is one
	bodyless bool
	length   int64
	written  int64
	out, buf []byte // the head until it is sent; what was gathered of the body
	failed   error
	finished bool

	mu       sync.Mutex
	answered bool // the head was sent
	boundAt  time.Time
}

func newResponse(st *quic.Stream, isHead bool) *response {
	return &response{st: st, header: http.Header{}, isHead: isHead, length: -1}
}

// Header is of http.ResponseWriter.
func (r *response) Header() http.Header { return r.header }

// WriteHeader is of http.ResponseWriter.
func (r *response) WriteHeader(status int) {
	if r.status != 0 || status == http.StatusSwitchingProtocols {
		return
	}
	if status >= 100 && status < 200 {
		r.send(appendFields(nil, status, r.header), nil)
		return
	}
	r.status = status
	r.bodyless = r.isHead || status == http.StatusNoContent || status == http.StatusNotModified
	if v := r.header["Content-Length"]; len(v) > 0 {
		n, err := strconv.ParseInt(v[0], 10, 64)
		if err != nil || n < 0 || len(v) > 1 {
			delete(r.header, "Content-Length")
		} else {
			r.length = n
		}
	}
	if _, ok := r.header["Date"]; !ok {
		r.header["Date"] = []string{time.Now().UTC().Format(http.TimeFormat)}
	}
	r.out = appendFields(r.out, status, r.header)
}

var (
	errTooMuch   = errors.New("more of a body than its length")
	errTooLittle = errors.New("less of a body than its length")
)

// Write is of http.ResponseWriter.
func (r *response) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	switch {
	case r.failed != nil:
		return 0, r.failed
	case r.bodyless || len(b) == 0:
		return len(b), nil
	case r.length >= 0 && r.written+int64(len(b)) > r.length:
		return 0, errTooMuch
	}
	r.written += int64(len(b))
	if len(r.buf)+len(b) > maxGather {
		r.Flush()
	}
	if len(b) <= maxGather {
		r.buf = append(r.buf, b...)
	} else {
		r.send(nil, b)
	}
	return len(b), r.failed
}

// Flush is of http.Flusher.
func (r *response) Flush() {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if head := r.out; len(head) > 0 || len(r.buf) > 0 {
		if len(head) > 0 {
			r.unbound()
		}
		r.send(head, r.buf)
		r.out, r.buf = nil, r.buf[:0]
	}
}

// send writes frames that are ready, and data in one of its own. The client must take some
// of it in stallTime.
func (r *response) send(ready, data []byte) {
	if r.failed != nil {
		return
	}
	if len(data) > 0 {
		ready = append(appendHead(ready, frameData, len(data)), data...)
	}
	_ = r.st.SetWriteDeadline(time.Now().Add(stallTime))
	_, r.failed = r.st.Write(ready)
}

// goOn tells a client that waits to send its body.
func (r *response) goOn() {
	r.mu.Lock()
	answered := r.answered
	r.mu.Unlock()
	if !answered {
		_, _ = r.st.Write(appendFields(nil, http.StatusContinue, nil))
	}
}

// bound gives the client stallTime to send more of its body, until the answer has begun:
// then both sides may be talking, now and then, as long as the connection is alive.
func (r *response) bound(st *quic.Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); !r.answered && now.Sub(r.boundAt) > time.Second {
		r.boundAt = now
		_ = st.SetReadDeadline(now.Add(stallTime))
	}
}

func (r *response) unbound() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered = true
	if !r.boundAt.IsZero() {
		_ = r.st.SetReadDeadline(time.Time{})
	}
}

// finish completes the answer, by its trailer if it has one.
func (r *response) finish() error {
	if r.status == 0 {
		r.header["Content-Length"] = []string{"0"}
		r.WriteHeader(http.StatusOK)
	}
	r.Flush()
	if r.length >= 0 && !r.bodyless && r.written != r.length && r.failed == nil {
		r.failed = errTooLittle
	}
	if trailer := r.trailer(); len(trailer) > 0 {
		r.send(appendFields(nil, 0, trailer), nil)
	}
	if r.failed == nil {
		r.finished = true
		r.failed = r.st.Close()
	}
	return r.failed
}

// trailer are the fields after the body.
func (r *response) trailer() http.Header {
	var t http.Header
	add := func(name string, values []string) {
		if t == nil {
			t = http.Header{}
		}
		t[name] = values
	}
	for name, values := range r.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			add(name, values)
		}
	}
	for _, list := range r.header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if values := r.header[name]; r.header[http.TrailerPrefix+name] == nil && len(values) > 0 {
				add(name, values)
			}
		}
	}
	return t
}

// appendFields appends a frame of fields, but those that belong to HTTP/1.1's connections
// and those of the trailer. A status of 0 is a trailer's.
func appendFields(b []byte, status int, h http.Header) []byte {
	var block bytes.Buffer
	encoder := qpack.NewEncoder(&block)
	write := func(name, value string) {
		_ = encoder.WriteField(qpack.HeaderField{Name: name, Value: value}) // a buffer takes everything
	}
	if status != 0 {
		write(":status", strconv.Itoa(status))
	}
	for name, values := range h {
		switch name {
		case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
			continue
		}
		lower := strings.ToLower(name)
		if strings.HasPrefix(name, http.TrailerPrefix) || !validName(lower) {
			continue
		}
		for _, v := range values {
			if !strings.ContainsAny(v, "\r\n\x00") {
				write(lower, v)
			}
		}
	}
	return append(appendHead(b, frameHeaders, block.Len()), block.Bytes()...)
}
