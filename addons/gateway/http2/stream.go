package http2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"knarr/internal/run"
)

// A stream is one request and its answer. The connection's mutex guards what is not the
// handler's alone.
type stream struct {
	c       *conn
	id      uint32
	ctx     context.Context
	cancel  context.CancelFunc
	request *http.Request
	header  http.Header
	values  []string
	cookies []string
	url     url.URL
	answer  response

	window int64 // that the client takes
	failed error // the stream's or the connection's end
	in     []byte
	inEnd  error // after in: io.EOF or why there is no more
	half   bool  // the client has sent everything
	closed bool  // nobody reads the body any more
	from   int   // what of in was read
	// sendSince and readSince are since when it waits for the client, zero if it does not.
	sendSince, readSince time.Time
	answered             bool // the answer's head was sent
	body                 *body
	pending              int64 // bytes that were read, and that the client was not told of
	allowed              int64 // that the client may still send
	length               int64 // of the body as its head says, -1 if it does not
	got                  int64
	trailer              http.Header
	arrived              sync.Cond
}

var streams = sync.Pool{New: func() any { return &stream{header: http.Header{}} }}

// abort ends what waits for the stream. mu is held.
func (st *stream) abort(err error) {
	if st.failed == nil {
		st.failed = err
	}
	if st.inEnd == nil {
		st.inEnd = err
	}
	st.cancel()
	st.arrived.Broadcast()
	st.c.changed.Broadcast()
}

// headers opens a stream, or ends a body by its trailer.
func (c *conn) headers(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	c.mu.Lock()
	defer c.mu.Unlock()
	if st := c.streams[id]; st != nil {
		return c.trailers(st, f)
	}
	switch {
	case c.wasReset(id):
		return nil
	case id%2 == 0 || id <= c.last:
		if id%2 == 1 {
			return http2.ConnectionError(http2.ErrCodeStreamClosed)
		}
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case f.HasPriority() && f.Priority.StreamDep == id:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	case c.goAway:
		return nil // it is another connection's
	}
	if c.parked {
		if c.parked = false; !c.idler.Unpark() {
			return errLeft
		}
	}
	c.last = id
	if c.running >= maxStreams || len(c.out) > maxQueue {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	st := streams.Get().(*stream)
	if !st.open(c, f) {
		st.release()
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	c.streams[id] = st
	c.running++
	c.controls -= streamControls
	if c.waiting > 0 {
		select {
		case c.work <- st:
			return nil
		default:
		}
	}
	run.Go("gateway HTTP/2 stream", func() { c.worker(st) })
	return nil
}

// worker serves a stream, and further ones as they come.
func (c *conn) worker(st *stream) {
	for st != nil {
		c.serveStream(st)
		c.mu.Lock()
		c.running--
		c.changed.Broadcast()
		if c.waiting >= maxWorkers || c.failed != nil {
			c.mu.Unlock()
			return
		}
		c.waiting++
		c.mu.Unlock()
		st = <-c.work
		c.mu.Lock()
		c.waiting--
		c.mu.Unlock()
	}
}

func (c *conn) serveStream(st *stream) {
	whole := false
	defer func() {
		st.end(whole)
	}()
	defer func() {
		// The worker's goroutine goes on; the server's own panics are logged.
		if cause := recover(); cause != nil && cause != http.ErrAbortHandler {
			run.Panicked("gateway HTTP/2 stream", func() { panic(cause) })
		}
	}()
	if st.answer.tooLarge {
		st.answer.WriteHeader(http.StatusRequestHeaderFieldsTooLarge)
	} else {
		c.server.Handler.ServeHTTP(&st.answer, st.request)
	}
	whole = true
}

// release lets another request use the stream's memory.
func (st *stream) release() {
	clear(st.header)
	in, values := st.in[:0], st.values[:0]
	if cap(in) > 16<<10 {
		in = nil
	}
	st.answer.Reset()
	answer := response{Answer: st.answer.Answer, block: st.answer.block[:0]}
	*st = stream{header: st.header, in: in, values: values, cookies: st.cookies[:0], answer: answer}
	streams.Put(st)
}

// open makes a request of a header block; false if it is malformed. mu is held.
func (st *stream) open(c *conn, f *http2.MetaHeadersFrame) bool {
	st.c, st.id, st.window, st.allowed, st.length, st.half = c, f.StreamID, c.initialWindow, streamWindow, -1, f.StreamEnded()
	st.arrived.L = &c.mu
	h := st.header
	for _, field := range f.RegularFields() {
		if strings.IndexByte(field.Name, '_') >= 0 {
			continue // many a backend takes it for another name, of which the gateway says the value
		}
		switch name := canonical(field.Name); name {
		case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
			return false
		case "Te":
			if field.Value != "trailers" {
				return false
			}
			h[name] = []string{field.Value}
		case "Cookie":
			st.cookies = append(st.cookies, field.Value)
		default:
			st.add(name, field.Value)
		}
	}
	if len(st.cookies) == 1 {
		st.add("Cookie", st.cookies[0])
	} else if len(st.cookies) > 1 { // clients split it to compress it
		st.add("Cookie", strings.Join(st.cookies, "; "))
	}
	method, path, scheme, authority := f.PseudoValue("method"), f.PseudoValue("path"), f.PseudoValue("scheme"), f.PseudoValue("authority")
	hosts := h["Host"]
	switch {
	case len(hosts) > 1 || len(hosts) == 1 && authority != "" && !strings.EqualFold(hosts[0], authority):
		return false
	case authority == "" && len(hosts) == 1:
		authority = hosts[0]
	}
	delete(h, "Host")
	switch {
	case method == http.MethodConnect:
		if path != "" || scheme != "" || authority == "" {
			return false
		}
	case method == "" || scheme != "http" && scheme != "https" || path == "" || path[0] != '/' && (path != "*" || method != http.MethodOptions):
		return false
	}
	if lengths := h["Content-Length"]; len(lengths) > 0 {
		n, err := strconv.ParseUint(lengths[0], 10, 62)
		if err != nil || len(lengths) > 1 || lengths[0][0] == '+' || st.half && n != 0 {
			return false
		}
		st.length = int64(n)
	}
	st.url.Path, st.url.RawQuery, _ = strings.Cut(path, "?")
	st.ctx, st.cancel = context.WithCancel(c.ctx)
	r := (&http.Request{Method: method, URL: &st.url, Proto: "HTTP/2.0", ProtoMajor: 2, Header: h, Body: http.NoBody, ContentLength: st.length,
		Host: authority, RemoteAddr: c.remote, RequestURI: path, TLS: c.tls}).WithContext(st.ctx)
	if st.half {
		r.ContentLength, st.inEnd = 0, io.EOF
	} else {
		st.body = &body{c: c, st: st, expects: len(h["Expect"]) == 1 && strings.EqualFold(h["Expect"][0], "100-continue")}
		r.Body = st.body
		for _, list := range h["Trailer"] {
			for name := range strings.SplitSeq(list, ",") {
				if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); name != "" && !notInTrailers[name] && len(r.Trailer) < 32 {
					if r.Trailer == nil {
						r.Trailer = http.Header{}
					}
					r.Trailer[name] = nil
				}
			}
		}
	}
	st.request = r
	st.answer.start(st, method == http.MethodHead, f.Truncated)
	return true
}

func (st *stream) add(name, value string) {
	if old, ok := st.header[name]; ok {
		st.header[name] = append(old, value)
		return
	}
	n := len(st.values)
	st.values = append(st.values, value)
	st.header[name] = st.values[n : n+1 : n+1]
}

// trailers end a body. mu is held.
func (c *conn) trailers(st *stream, f *http2.MetaHeadersFrame) error {
	switch {
	case st.half:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeStreamClosed}
	case !f.StreamEnded() || len(f.PseudoFields()) > 0 || st.length >= 0 && st.got != st.length:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	st.trailer = http.Header{}
	for _, field := range f.RegularFields() {
		if name := canonical(field.Name); !notInTrailers[name] && strings.IndexByte(name, '_') < 0 {
			st.trailer[name] = append(st.trailer[name], field.Value)
		}
	}
	st.endBody()
	return nil
}

// notInTrailers are fields that mean something only before the body.
var notInTrailers = map[string]bool{"Content-Length": true, "Transfer-Encoding": true, "Host": true, "Connection": true, "Trailer": true, "Te": true, "Upgrade": true,
	"Content-Encoding": true, "Content-Type": true, "Content-Range": true, "Authorization": true, "Cookie": true, "Set-Cookie": true, "Expect": true, "Cache-Control": true}

func (st *stream) endBody() {
	st.half = true
	if st.inEnd == nil {
		st.inEnd = io.EOF
	}
	st.arrived.Broadcast()
}

// data takes a part of a body.
func (c *conn) data(f *http2.DataFrame) error {
	c.mu.Lock()
	size := int64(f.Length)
	if c.held+c.pending+size > connWindow {
		c.mu.Unlock()
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	c.held += size
	update, err := c.store(f, size)
	c.mu.Unlock()
	if err == nil && update {
		return c.control()
	}
	return err
}

func (c *conn) store(f *http2.DataFrame, size int64) (update bool, err error) {
	st := c.streams[f.StreamID]
	switch {
	case st == nil && c.isIdle(f.StreamID):
		return false, http2.ConnectionError(http2.ErrCodeProtocol)
	case st == nil && c.wasReset(f.StreamID):
		return c.consume(nil, size), nil
	case st == nil || st.half:
		return c.consume(nil, size), http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	b := f.Data()
	if len(b) == 0 && !f.StreamEnded() {
		if c.empty++; c.empty > maxEmpty {
			return false, http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
		}
	}
	if st.allowed -= size; st.allowed < 0 {
		return c.consume(nil, size), http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
	}
	st.got += int64(len(b))
	if st.length >= 0 && (st.got > st.length || f.StreamEnded() && st.got != st.length) {
		return c.consume(nil, size), http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
	}
	unread := size
	if !st.closed {
		st.keep(b)
		unread -= int64(len(b)) // padding is no part of the body
	}
	if f.StreamEnded() {
		st.endBody()
	}
	st.arrived.Broadcast()
	return c.consume(st, unread), nil
}

// keep holds a part of the body until it is read. What was read before it makes room once
// that is half of the buffer, so that the buffer stays within twice what the window lets
// in, and each byte is moved but once or twice. mu is held.
func (st *stream) keep(b []byte) {
	if st.from > 0 && len(st.in)+len(b) > cap(st.in) && st.from >= len(st.in)/2 {
		st.in, st.from = st.in[:copy(st.in, st.in[st.from:])], 0
	}
	st.in = append(st.in, b...)
}

// consume gives the client room for what was read, of a stream that still is there or
// of the connection alone. It reports whether there is a frame to flush. mu is held.
func (c *conn) consume(st *stream, n int64) (update bool) {
	c.held -= n
	if c.pending += n; c.pending >= connWindow/4 {
		c.appendWindowUpdate(0, c.pending)
		c.pending, update = 0, true
	}
	if st == nil || st.half {
		return update
	}
	if st.pending += n; st.pending >= streamWindow/4 {
		c.appendWindowUpdate(st.id, st.pending)
		st.allowed += st.pending
		st.pending, update = 0, true
	}
	return update
}

// end completes a stream whose handler has returned.
func (st *stream) end(whole bool) {
	c := st.c
	if whole {
		_ = st.answer.Finish() // it is asked for below
	}
	c.mu.Lock()
	if st.body != nil {
		st.body.st = nil
	}
	if st.failed == nil {
		c.canceled = max(c.canceled-1, 0)
		switch {
		case !whole || st.answer.Failed() != nil:
			c.appendReset(st.id, http2.ErrCodeInternal)
		case !st.half:
			c.appendReset(st.id, http2.ErrCodeNo) // the rest of the body is not wanted
		}
	} else if errors.Is(st.failed, errTooSlow) {
		c.appendReset(st.id, http2.ErrCodeCancel)
	}
	if c.streams[st.id] == st {
		delete(c.streams, st.id)
	}
	st.closed = true
	c.consume(nil, int64(len(st.in)-st.from))
	over := c.goAway && len(c.streams) == 0
	c.mu.Unlock()
	c.flush()
	st.cancel()
	if over {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	}
	st.release()
}

var errBodyClosed = errors.New("the body was closed")
