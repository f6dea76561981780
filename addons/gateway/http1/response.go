package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"knarr/addons/gateway/answer"
	"knarr/addons/gateway/socket"
)

// maxGather is how much of an answer is gathered before it is written: the whole of a
// small one, so that it is one packet.
const maxGather = 16 << 10

// A response is the answer to a client's request. Its head and first bytes leave together,
// and what follows at once.
type response struct {
	c         *conn
	w         *work
	head      bool // of a HEAD request
	http10    bool
	keep      bool // the connection, for another request
	wroteHead bool
	status    int
	length    int64 // that the head promised; -1 if it did not
	written   int64
	chunked   bool
	bodyless  bool
	failed    error
}

func (r *response) start(c *conn, w *work, line requestLine) {
	w.answer.reset()
	w.out = w.out[:0]
	h := w.fields.header
	keep := !line.http10
	if connection := h["Connection"]; len(connection) > 0 {
		switch {
		case hasToken(connection, "close"):
			keep = false
		case line.http10 && hasToken(connection, "keep-alive"):
			keep = true
		}
	}
	*r = response{c: c, w: w, head: line.method == http.MethodHead, http10: line.http10, keep: keep}
}

// Header is of http.ResponseWriter.
func (r *response) Header() http.Header { return r.w.answer.header }

func itoa(n int) string { return strconv.Itoa(n) }

func statusLine(status int) string {
	return strconv.Itoa(status) + " " + http.StatusText(status)
}

// WriteHeader is of http.ResponseWriter.
func (r *response) WriteHeader(status int) {
	if r.wroteHead {
		return
	}
	h := r.w.answer.header
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		r.appendHead(status, h)
		r.w.out = append(r.w.out, "\r\n"...)
		r.flush()
		return
	}
	r.wroteHead, r.status, r.length = true, status, unknownLength
	if v := h["Content-Length"]; len(v) > 0 {
		if n, ok := parseLength(v[0]); ok && len(v) == 1 {
			r.length = n
		} else {
			delete(h, "Content-Length")
		}
	}
	delete(h, "Transfer-Encoding")
	r.bodyless = r.head || status == http.StatusNoContent || status == http.StatusNotModified
	if !r.bodyless && r.length < 0 {
		if r.http10 {
			r.keep = false // the end of the connection is the end of the body
		} else {
			r.chunked = true
		}
	}
	if status == http.StatusNoContent {
		delete(h, "Content-Length")
	}
	if r.c.server.closing.Load() || r.w.body.expects {
		r.keep = false // the client does not know whether the body it holds back is wanted
	}
	r.appendHead(status, h)
	out := r.w.out
	if _, ok := h["Date"]; !ok {
		out = append(append(append(out, "Date: "...), answer.Date()...), "\r\n"...)
	}
	if r.chunked {
		out = append(out, "Transfer-Encoding: chunked\r\n"...)
	}
	switch {
	case !r.keep:
		out = append(out, "Connection: close\r\n"...)
	case r.http10:
		out = append(out, "Connection: keep-alive\r\n"...)
	}
	r.w.out = append(out, "\r\n"...)
}

// appendHead writes the status line and the fields. A value with a line's end in it,
// which no parser of ours lets through, is left out.
func (r *response) appendHead(status int, h http.Header) {
	out := r.w.out
	switch status {
	case http.StatusOK:
		out = append(out, "HTTP/1.1 200 OK\r\n"...)
	default:
		out = append(out, "HTTP/1.1 "...)
		out = strconv.AppendInt(out, int64(status), 10)
		out = append(append(append(out, ' '), http.StatusText(status)...), "\r\n"...)
	}
	for name, values := range h {
		if name == "Connection" || strings.HasPrefix(name, http.TrailerPrefix) {
			continue
		}
		out = appendField(out, name, values)
	}
	r.w.out = out
}

func appendField(out []byte, name string, values []string) []byte {
	for _, v := range values {
		if !validValue(v) {
			continue
		}
		out = append(append(append(append(out, name...), ": "...), v...), "\r\n"...)
	}
	return out
}

func validValue(v string) bool {
	return strings.IndexByte(v, '\n') < 0 && strings.IndexByte(v, '\r') < 0 && strings.IndexByte(v, 0) < 0
}

var errTooMuch = errors.New("more of a body than its length")

// Write is of http.ResponseWriter.
func (r *response) Write(b []byte) (int, error) {
	if !r.wroteHead {
		r.WriteHeader(http.StatusOK)
	}
	switch {
	case r.failed != nil:
		return 0, r.failed
	case len(b) == 0 || r.bodyless:
		return len(b), nil
	case r.length >= 0 && r.written+int64(len(b)) > r.length:
		return 0, errTooMuch
	}
	r.written += int64(len(b))
	if r.chunked {
		r.w.out = strconv.AppendInt(r.w.out, int64(len(b)), 16)
		r.w.out = append(r.w.out, "\r\n"...)
	}
	if len(r.w.out)+len(b) <= maxGather {
		r.w.out = append(r.w.out, b...)
	} else {
		r.writeThrough(b)
	}
	if r.chunked {
		r.w.out = append(r.w.out, "\r\n"...)
	}
	return len(b), r.failed
}

// writeThrough writes what was gathered and b, by one call if the connection is a
// socket's.
func (r *response) writeThrough(b []byte) {
	plain := r.c.plain()
	if plain == nil {
		r.flush()
		r.write(b)
		return
	}
	if r.failed != nil {
		return
	}
	r.c.armWrite()
	both := net.Buffers{r.w.out, b}
	_, r.failed = both.WriteTo(plain)
	r.w.out = r.w.out[:0]
}

// plain is the socket of a connection that has nothing around it.
func (c *conn) plain() *net.TCPConn {
	nc := c.nc
	if of, ok := nc.(*socket.Conn); ok {
		nc = of.Conn
	}
	plain, _ := nc.(*net.TCPConn)
	return plain
}

func (r *response) flush() {
	if len(r.w.out) > 0 {
		r.write(r.w.out)
		r.w.out = r.w.out[:0]
	}
}

func (r *response) write(b []byte) {
	if r.failed == nil {
		r.c.armWrite()
		_, r.failed = r.c.nc.Write(b)
	}
}

// armWrite gives a write at least half of writeTime.
func (c *conn) armWrite() {
	if now := time.Now(); c.writeBy.Sub(now) < writeTime/2 {
		c.writeBy = now.Add(writeTime)
		_ = c.nc.SetWriteDeadline(c.writeBy)
	}
}

// Flush is of http.Flusher.
func (r *response) Flush() {
	if !r.wroteHead {
		r.WriteHeader(http.StatusOK)
	}
	r.flush()
}

// end completes the answer; false if it could not be.
func (r *response) end() bool {
	if !r.wroteHead {
		r.w.answer.header["Content-Length"] = []string{"0"}
		r.WriteHeader(http.StatusOK)
	}
	if r.chunked {
		r.w.out = append(r.w.out, "0\r\n"...)
		for name, values := range r.w.answer.header {
			if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
				r.w.out = appendField(r.w.out, name, values)
			}
		}
		r.w.out = append(r.w.out, "\r\n"...)
	}
	r.flush()
	if r.length >= 0 && !r.bodyless && r.written != r.length {
		r.keep = false
	}
	return r.failed == nil
}

// Hijack is of http.Hijacker. What the client has sent is in the reader.
func (r *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if r.wroteHead || r.c.taken || r.c.socket != nil && r.c.socket.Polling() {
		return nil, nil, errors.New("the connection is not free")
	}
	r.c.taken = true
	nc := r.c.nc
	if plain := r.c.plain(); plain != nil {
		nc = plain // which the kernel can copy to and from
	}
	_ = nc.SetDeadline(time.Time{})
	unread := bytes.Clone(r.w.reader.unread())
	rest := io.MultiReader(bytes.NewReader(unread), nc)
	return nc, bufio.NewReadWriter(bufio.NewReader(rest), bufio.NewWriter(nc)), nil
}
