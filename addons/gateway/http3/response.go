package http3

import (
	"bytes"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"

	"knarr/addons/gateway/answer"
)

// A response is the answer to a request. Its head leaves together with the first bytes.
type response struct {
	answer.Answer
	st   *quic.Stream
	head []byte // until it is sent

	mu       sync.Mutex
	answered bool // the head was sent
	boundAt  time.Time
}

func newResponse(st *quic.Stream, isHead bool) *response {
	r := &response{st: st}
	r.Start(r, http.Header{}, isHead)
	return r
}

// Informational is of answer.Wire.
func (r *response) Informational(status int, h http.Header) {
	_ = r.write(appendFields(nil, status, h)) // what follows fails too
}

// Head is of answer.Wire.
func (r *response) Head(status int, h http.Header) {
	if _, ok := h["Date"]; !ok {
		h["Date"] = []string{answer.Date()}
	}
	r.head = appendFields(r.head, status, h)
}

// Send is of answer.Wire.
func (r *response) Send(data []byte, first, end bool) error {
	ready := r.head
	if r.head = nil; first {
		r.unbound()
	}
	if len(data) > 0 {
		ready = append(appendHead(ready, frameData, len(data)), data...)
	}
	if len(ready) > 0 {
		if err := r.write(ready); err != nil {
			return err
		}
	}
	if end {
		return r.st.Close()
	}
	return nil
}

// Trailer is of answer.Wire.
func (r *response) Trailer(fields iter.Seq2[string, string]) error {
	if err := r.write(appendFrame(nil, 0, fields)); err != nil {
		return err
	}
	return r.st.Close()
}

// write writes frames. The client must take some of it in stallTime.
func (r *response) write(frames []byte) error {
	_ = r.st.SetWriteDeadline(time.Now().Add(stallTime))
	_, err := r.st.Write(frames)
	return err
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

// appendFields appends a frame of fields, but those that belong to HTTP/1.1's connections
// and those of the trailer. A status of 0 is a trailer's.
func appendFields(b []byte, status int, h http.Header) []byte {
	return appendFrame(b, status, answer.Fields(h))
}

// appendFrame appends a frame of fields, but what is none: a name that is no token, an end
// of a line in a value.
func appendFrame(b []byte, status int, fields iter.Seq2[string, string]) []byte {
	var block bytes.Buffer
	encoder := qpack.NewEncoder(&block)
	write := func(name, value string) {
		_ = encoder.WriteField(qpack.HeaderField{Name: name, Value: value}) // a buffer takes everything
	}
	if status != 0 {
		write(":status", strconv.Itoa(status))
	}
	for name, value := range fields {
		if lower := strings.ToLower(name); validName(lower) && !strings.ContainsAny(value, "\r\n\x00") {
			write(lower, value)
		}
	}
	return append(appendHead(b, frameHeaders, block.Len()), block.Bytes()...)
}
