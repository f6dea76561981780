package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"knarr/addons/gateway/socket"
	"knarr/internal/run"
)

// Times of a server's connections.
const (
	headTime   = 10 * time.Second // from a request's first byte to its head's end
	idleTime   = 75 * time.Second // between requests
	bodyTime   = 60 * time.Second // without a byte of a body that is waited for
	writeTime  = 60 * time.Second // without a byte taken of an answer
	lingerTime = time.Second      // for a client to read an answer before the end
	maxLinger  = 256 << 10        // of a body that nobody wants
	maxDiscard = 64 << 10         // of a body that is read to keep the connection
)

// A Server serves connections that others accept.
type Server struct {
	// Handler is called for each request. The request, its header and the answer's are used
	// again afterwards.
	Handler http.Handler
	// HTTP2 gets a connection that begins with HTTP/2's preface, with what was read of it.
	HTTP2 func(conn net.Conn, read []byte)

	mu      sync.Mutex
	conns   map[*conn]struct{}
	closing atomic.Bool
	none    chan struct{} // closed once there are no connections; nil while there are none
	idle    sync.Cond
}

// NewServer is a Server without connections.
func NewServer(h http.Handler, http2 func(net.Conn, []byte)) *Server {
	s := &Server{Handler: h, HTTP2: http2, conns: map[*conn]struct{}{}}
	s.idle.L = &s.mu
	return s
}

// A conn is one connection to a client.
type conn struct {
	server  *Server
	nc      net.Conn
	raw     syscall.RawConn // of the socket beneath TLS
	socket  *socket.Conn    // nil if it cannot be polled
	tls     *tls.ConnectionState
	remote  string
	base    *http.Request // with what all requests of the connection have
	ctx     context.Context
	cancel  context.CancelFunc
	since   atomic.Int64 // when a handler was called, in Unix nanoseconds; 0: none is running
	writeBy time.Time    // the deadline for writes that the connection has
	taken   bool         // by Hijack
	first   bool         // no request was read yet
}

// Serve serves a connection until its end. state is of a connection with TLS, beneath the
// connection beneath it, best a socket.Conn.
func (s *Server) Serve(nc, beneath net.Conn, state *tls.ConnectionState) {
	c := &conn{server: s, nc: nc, tls: state, remote: nc.RemoteAddr().String(), first: true}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.base = (&http.Request{RemoteAddr: c.remote, TLS: state}).WithContext(c.ctx)
	if of, ok := beneath.(*socket.Conn); ok {
		c.socket, c.raw = of, of.Raw()
	} else if of, ok := beneath.(syscall.Conn); ok {
		c.raw, _ = of.SyscallConn()
	}
	if !s.add(c) {
		_ = nc.Close()
		return
	}
	defer s.remove(c)
	defer c.cancel()
	keep := false
	defer func() {
		if !keep {
			_ = nc.Close()
		}
	}()
	defer run.Recover("gateway connection")
	keep = c.serve()
}

func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return false
	}
	s.conns[c] = struct{}{}
	if s.none == nil {
		none := make(chan struct{})
		s.none = none
		run.Go("gateway: clients that left", func() { s.cancelLeft(none) })
	}
	return true
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if len(s.conns) == 0 {
		close(s.none)
		s.none = nil
		s.idle.Broadcast()
	}
}

// cancelLeft looks every second whether clients are still there whose requests take
// longer than that, and cancels the requests of those that are not. It ends when there are
// no connections.
func (s *Server) cancelLeft(none <-chan struct{}) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		var now time.Time
		select {
		case now = <-ticker.C:
		case <-none:
			return
		}
		var slow []*conn
		s.mu.Lock()
		for c := range s.conns {
			if at := c.since.Load(); at != 0 && now.UnixNano()-at > int64(time.Second) && c.raw != nil {
				slow = append(slow, c)
			}
		}
		s.mu.Unlock()
		for _, c := range slow {
			if c.left() {
				c.cancel()
			}
		}
	}
}

// left reports whether the client has closed the connection or its sending side.
func (c *conn) left() (left bool) {
	err := c.raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if n, err := unix.Poll(fds, 0); err == nil && n > 0 {
			left = fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
		}
	})
	return left && err == nil
}

// Shutdown ends the connections that serve no request, and the others when they have.
// When ctx ends, all.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.closing.Store(true)
	for c := range s.conns {
		if c.since.Load() == 0 {
			_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // it looks at closing then
		}
	}
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		left := slices.Collect(maps.Keys(s.conns))
		s.mu.Unlock()
		for _, c := range left {
			c.cancel()
		}
		for _, c := range left { // the end of one that is polled waits for its handler's
			run.Go("gateway: end connection", func() { _ = c.nc.Close() })
		}
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.conns) > 0 {
		s.idle.Wait()
	}
}

// readRequest makes a request of a head.
func (c *conn) readRequest(w *work, head string) error {
	first, lines, _ := strings.Cut(head, "\r\n")
	line, err := parseRequestLine(first)
	if err != nil {
		return err
	}
	w.fields.reset()
	if err := w.fields.parse(lines); err != nil {
		return err
	}
	h := w.fields.header
	length, chunked, err := framing(h, line.http10)
	if err != nil {
		return err
	}
	host := ""
	switch hosts := h["Host"]; {
	case len(hosts) > 1 || len(hosts) == 0 && !line.http10:
		return errHead
	case len(hosts) == 1:
		host = hosts[0]
		delete(h, "Host")
	}
	kind := bodyNone
	switch {
	case chunked:
		kind = bodyChunked
	case length > 0:
		kind = bodyLength
	default:
		length = 0
	}
	expects := false
	if e := h["Expect"]; len(e) > 0 {
		if len(e) > 1 || !strings.EqualFold(e[0], "100-continue") {
			return errExpect
		}
		expects = kind != bodyNone && !line.http10
	}
	w.url = url.URL{}
	if err := parseTarget(&w.url, &host, line); err != nil {
		return err
	}
	proto, minor := "HTTP/1.1", 1
	if line.http10 {
		proto, minor = "HTTP/1.0", 0
	}
	w.body.start(c, w, kind, length, expects)
	w.request = *c.base
	r := &w.request
	r.Method, r.URL, r.RequestURI, r.Host, r.Header = line.method, &w.url, line.target, host, h
	r.Proto, r.ProtoMajor, r.ProtoMinor = proto, 1, minor
	r.Body, r.ContentLength = http.NoBody, length
	if kind != bodyNone {
		w.request.Body = &w.body
	}
	if chunked {
		w.request.TransferEncoding = chunkedCoding
		w.body.announced = announce(h)
		w.request.Trailer = w.body.announced
		delete(h, "Transfer-Encoding")
	}
	w.w.start(c, w, line)
	return nil
}

var (
	chunkedCoding = []string{"chunked"}
	errExpect     = errors.New("an expectation that is not known")
)

// parseTarget takes a target of any form apart.
func parseTarget(u *url.URL, host *string, line requestLine) error {
	target := line.target
	switch {
	case target[0] == '/':
		u.Path, u.RawQuery, _ = strings.Cut(target, "?")
		return nil
	case line.method == http.MethodConnect:
		u.Host = target
		*host = target
		return nil
	case target == "*":
		u.Path = target
		return nil
	}
	absolute, err := url.ParseRequestURI(target)
	if err != nil || absolute.Host == "" || absolute.Scheme != "http" && absolute.Scheme != "https" || absolute.User != nil || absolute.Fragment != "" {
		return errHead
	}
	*u = *absolute
	*host = absolute.Host // it says more than the header Host
	return nil
}

// refuse answers what is no request.
func (c *conn) refuse(w *work, err error) {
	status := 0
	switch {
	case errors.Is(err, errHeadSize):
		status = http.StatusRequestHeaderFieldsTooLarge
	case errors.Is(err, errHead), errors.Is(err, errFraming):
		status = http.StatusBadRequest
	case errors.Is(err, errCoding):
		status = http.StatusNotImplemented
	case errors.Is(err, errVersion):
		status = http.StatusHTTPVersionNotSupported
	case errors.Is(err, errExpect):
		status = http.StatusExpectationFailed
	case errors.Is(err, errSlow):
		status = http.StatusRequestTimeout
	default:
		return
	}
	text := http.StatusText(status)
	_ = c.nc.SetWriteDeadline(time.Now().Add(lingerTime))
	_, _ = io.WriteString(c.nc, "HTTP/1.1 "+statusLine(status)+"\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: "+
		itoa(len(text)+1)+"\r\n\r\n"+text+"\n")
	c.linger(w)
}

// linger lets the client read what was answered before the connection ends: closing one
// with unread bytes makes the kernel throw the answer away.
func (c *conn) linger(w *work) {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, c.nc, maxLinger)
}

// finish completes an answer and reads what is left of the request's body, and reports
// whether another request may follow.
func (c *conn) finish(w *work) bool {
	if !w.w.end() {
		return false
	}
	return w.w.keep && w.body.discard()
}
