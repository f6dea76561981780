package proxy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"

	"knarr/addons/gateway/http1"
	"knarr/internal/run"
)

// upgrade passes a connection on that both sides now speak another protocol on. What the
// client sent before the answer is not lost: it is in the server's buffer.
func (x *exchange) upgrade(answer *http.Response, asked string) {
	back, ok := answer.Body.(io.ReadWriteCloser)
	hijacker, can := x.w.(http.Hijacker)
	if !ok || !can || asked == "" || !strings.EqualFold(answer.Header.Get("Upgrade"), asked) {
		x.answer(http.StatusBadGateway)
		return
	}
	h := x.w.Header()
	dropHopByHop(answer.Header)
	for name, values := range answer.Header {
		h[name] = values
	}
	x.responseFilters(h)
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{asked}
	conn, buffered, err := hijacker.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer conn.Close()
	if _, err := io.WriteString(buffered, "HTTP/1.1 101 Switching Protocols\r\n"); err != nil {
		return
	}
	if h.Write(buffered) != nil {
		return
	}
	if _, err := io.WriteString(buffered, "\r\n"); err != nil || buffered.Flush() != nil {
		return
	}
	var group run.Group
	group.Go("gateway upgraded connection", func() {
		_, err := io.Copy(back, buffered.Reader)
		closeWrite(back, err)
	})
	n, err := io.Copy(conn, back)
	x.record.Sent = n
	closeWrite(conn, err)
	group.Wait()
	_ = back.Close()
}

// closeWrite tells the other side that no more comes, or everything if that is not
// possible or the copy failed.
func closeWrite(c io.Closer, err error) {
	half, ok := c.(interface{ CloseWrite() error })
	if err == nil && ok && half.CloseWrite() == nil {
		return
	}
	_ = c.Close()
}

// isNotMade reports whether a request failed before there was a connection for it.
func isNotMade(err error) bool {
	if _, ok := errors.AsType[*http1.NotMadeError](err); ok {
		return true
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}
