package http2

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// maxGather is how much of an answer is gathered before it is written.
const maxGather = 16 << 10

// A response is the answer to a request. Its head is encoded when it is written, and
// leaves together with the first bytes.
type response struct {
	st       *stream
	header   http.Header
	isHead   bool // of a HEAD request
	tooLarge bool // the request's fields are too many
	wrote    bool
	sentHead bool
	bodyless bool
	length   int64
	written  int64
	block    []byte
	buf      []byte
	failed   error
}

func (r *response) start(st *stream, isHead, tooLarge bool) {
	*r = response{st: st, header: r.header, isHead: isHead, tooLarge: tooLarge, block: r.block[:0], buf: r.buf[:0], length: -1}
}

// Header is of http.ResponseWriter.
func (r *response) Header() http.Header { return r.header }

// WriteHeader is of http.ResponseWriter.
func (r *response) WriteHeader(status int) {
	c := r.st.c
	if r.wrote || status == http.StatusSwitchingProtocols {
		return
	}
	if status >= 100 && status < 200 {
		block := appendFields(appendStatus(nil, status), r.header)
		c.mu.Lock()
		if r.st.room(false) {
			c.appendBlock(r.st.id, block, false)
		}
		c.mu.Unlock()
		c.flush()
		return
	}
	r.wrote = true
	r.bodyless = r.isHead || status == http.StatusNoContent || status == http.StatusNotModified
	if v := r.header["Content-Length"]; len(v) > 0 {
		n, err := strconv.ParseInt(v[0], 10, 64)
		if err != nil || n < 0 || len(v) > 1 {
			delete(r.header, "Content-Length")
		} else {
			r.length = n
		}
	}
	r.block = appendFields(appendStatus(r.block[:0], status), r.header)
	if _, ok := r.header["Date"]; !ok {
		r.block = appendField(r.block, "Date", dateNow())
	}
}

var errTooMuch = errors.New("more of a body than its length")

// Write is of http.ResponseWriter.
func (r *response) Write(b []byte) (int, error) {
	if !r.wrote {
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
	if len(r.buf)+len(b) <= maxGather {
		r.buf = append(r.buf, b...)
		return len(b), nil
	}
	r.send(false)
	if len(b) <= maxGather {
		r.buf = append(r.buf, b...)
	} else if r.failed == nil {
		r.failed = r.st.send(nil, b, false, false)
	}
	return len(b), r.failed
}

// send writes what was gathered.
func (r *response) send(end bool) {
	if r.failed != nil {
		return
	}
	var block []byte
	if !r.sentHead {
		block = r.block
	}
	r.failed = r.st.send(block, r.buf, end, !r.sentHead)
	r.sentHead = true
	r.buf = r.buf[:0]
}

// Flush is of http.Flusher.
func (r *response) Flush() {
	if !r.wrote {
		r.WriteHeader(http.StatusOK)
	}
	if !r.sentHead || len(r.buf) > 0 {
		r.send(false)
	}
}

// finish completes the answer, by its trailer if it has one.
func (r *response) finish() {
	if !r.wrote {
		r.header["Content-Length"] = []string{"0"}
		r.WriteHeader(http.StatusOK)
	}
	if r.length >= 0 && !r.bodyless && r.written != r.length && r.failed == nil {
		r.failed = errors.New("less of a body than its length")
		return
	}
	var trailer []byte
	for name, values := range r.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			for _, v := range values {
				trailer = appendField(trailer, name, v)
			}
		}
	}
	for _, list := range r.header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if r.header[http.TrailerPrefix+name] != nil {
				continue
			}
			for _, v := range r.header[name] {
				trailer = appendField(trailer, name, v)
			}
		}
	}
	if r.send(trailer == nil); trailer == nil || r.failed != nil {
		return
	}
	c := r.st.c
	c.mu.Lock()
	if r.st.room(false) {
		c.appendBlock(r.st.id, trailer, true)
	}
	c.mu.Unlock()
}

// send appends a head and data as the windows allow, and writes it unless that is the
// end, which the stream's end writes.
func (st *stream) send(block, data []byte, end, head bool) error {
	c := st.c
	c.mu.Lock()
	room := st.room(false)
	if head && room {
		st.answered = true
		c.appendBlock(st.id, block, end && len(data) == 0)
	}
	if !head && len(data) == 0 && end && room {
		c.appendHead(http2.FrameData, http2.FlagDataEndStream, st.id, 0)
	}
	for len(data) > 0 {
		if !st.room(true) {
			break
		}
		n := int(min(int64(len(data)), c.window, st.window, int64(c.frameSize)))
		flags := http2.Flags(0)
		if end && n == len(data) {
			flags = http2.FlagDataEndStream
		}
		c.appendHead(http2.FrameData, flags, st.id, n)
		c.out = append(c.out, data[:n]...)
		data = data[n:]
		c.window -= int64(n)
		c.controls -= n / controlBytes
		st.window -= int64(n)
	}
	err := st.failed
	if err == nil {
		err = c.failed
	}
	c.mu.Unlock()
	if !end {
		c.flush()
	}
	return err
}

// room waits until the queue is short enough that the stream may add to it, and for data
// until the windows are open. It reports whether the stream goes on. mu is held, but not
// while it waits.
func (st *stream) room(data bool) bool {
	c := st.c
	for st.failed == nil && c.failed == nil && (len(c.out) > maxQueued || data && (c.window <= 0 || st.window <= 0)) {
		if len(c.out) > 0 && !c.writing {
			c.mu.Unlock()
			c.flush()
			c.mu.Lock()
			continue
		}
		if st.sendSince.IsZero() {
			st.sendSince = time.Now()
		}
		c.changed.Wait()
	}
	st.sendSince = time.Time{}
	return st.failed == nil && c.failed == nil
}

type date struct {
	second int64
	text   string
}

var now atomic.Pointer[date]

func dateNow() string {
	t := time.Now()
	if d := now.Load(); d != nil && d.second == t.Unix() {
		return d.text
	}
	d := &date{t.Unix(), t.UTC().Format(http.TimeFormat)}
	now.Store(d)
	return d.text
}
