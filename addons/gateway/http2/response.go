package http2

import (
	"iter"
	"net/http"
	"time"

	"golang.org/x/net/http2"

	"knarr/addons/gateway/answer"
)

// A response is the answer to a request. Its head is encoded when it is written, and
// leaves together with the first bytes.
type response struct {
	answer.Answer
	st       *stream
	tooLarge bool // the request's fields are too many
	block    []byte
}

func (r *response) start(st *stream, isHead, tooLarge bool) {
	r.st, r.tooLarge, r.block = st, tooLarge, r.block[:0]
	r.Start(r, r.Header(), isHead)
}

// Informational is of answer.Wire.
func (r *response) Informational(status int, h http.Header) {
	c := r.st.c
	block := appendFields(appendStatus(nil, status), h)
	c.mu.Lock()
	if r.st.room(false) {
		c.appendBlock(r.st.id, block, false)
	}
	c.mu.Unlock()
	c.flush()
}

// Head is of answer.Wire.
func (r *response) Head(status int, h http.Header) {
	r.block = appendFields(appendStatus(r.block[:0], status), h)
	if _, ok := h["Date"]; !ok {
		r.block = appendField(r.block, "Date", answer.Date())
	}
}

// Send is of answer.Wire.
func (r *response) Send(data []byte, first, end bool) error {
	var block []byte
	if first {
		block = r.block
	}
	return r.st.send(block, data, end, first)
}

// Trailer is of answer.Wire.
func (r *response) Trailer(fields iter.Seq2[string, string]) error {
	var block []byte
	for name, value := range fields {
		block = appendField(block, name, value)
	}
	c := r.st.c
	c.mu.Lock()
	if r.st.room(false) {
		c.appendBlock(r.st.id, block, true)
	}
	c.mu.Unlock()
	return nil
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
