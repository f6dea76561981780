package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"knarr/addons/gateway/socket"
	"knarr/internal/run"
)

// A Pool is the connections to one endpoint.
type Pool struct {
	// Dial makes a connection, and returns the socket beneath it if it is encrypted.
	Dial func(ctx context.Context) (conn, socket net.Conn, err error)
	// ReadTimeout and WriteTimeout bound how long the endpoint may be silent or take nothing.
	ReadTimeout, WriteTimeout time.Duration
	// MaxIdle is how many connections are kept for later, IdleTimeout for how long.
	MaxIdle     int
	IdleTimeout time.Duration

	mu      sync.Mutex
	idle    []*backConn // the last one used is the last
	closed  bool
	pruning bool
}

// A NotMadeError is of a connection that was not made: nothing of the request was sent.
type NotMadeError struct{ Err error }

func (e *NotMadeError) Error() string { return e.Err.Error() }

// Unwrap is the cause.
func (e *NotMadeError) Unwrap() error { return e.Err }

// A backConn is a connection to an endpoint, and the answer that is read from it.
type backConn struct {
	pool     *Pool
	nc       net.Conn
	raw      syscall.RawConn
	check    func(fd uintptr) bool // sets dead
	dead     bool
	visit    func(fd uintptr) bool // of the poller; sets failed
	look     bool                  // whether the endpoint has closed, before anything is sent
	sent     int                   // of out
	failed   error
	reader   reader
	fields   fieldSet
	out      []byte
	writeBy  time.Time
	since    time.Time // when it became idle
	answered bool      // a byte of the answer has come

	ctx      context.Context
	stop     func() bool // of the watch of ctx
	response http.Response
	body     answerBody
	sending  *sending // a body that is sent while the answer is read
	keep     bool
	sentAt   atomic.Int64 // when a part of a long body was sent last, in Unix nanoseconds
}

// take is an idle connection, which the endpoint may have closed; nil without one.
func (p *Pool) take() *backConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return nil
	}
	c := p.idle[n-1]
	p.idle[n-1] = nil
	p.idle = p.idle[:n-1]
	return c
}

// gone reports whether the endpoint closed an idle connection, or sent what nobody asked
// for.
func (c *backConn) gone() bool {
	if c.raw == nil {
		return false
	}
	c.dead = false
	return c.raw.Read(c.check) != nil || c.dead
}

func (p *Pool) put(c *backConn) {
	c.reader.release()
	c.since = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= p.MaxIdle {
		_ = c.nc.Close()
		return
	}
	p.idle = append(p.idle, c)
	if !p.pruning {
		p.pruning = true
		run.AfterFunc("gateway: idle connections", p.IdleTimeout/2, p.prune)
	}
}

// prune closes connections that nobody used for long, and comes again while there are
// others.
func (p *Pool) prune() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, n := time.Now(), 0
	for n < len(p.idle) && now.Sub(p.idle[n].since) >= p.IdleTimeout {
		_ = p.idle[n].nc.Close()
		n++
	}
	p.idle = append(p.idle[:0], p.idle[n:]...)
	if p.pruning = len(p.idle) > 0; p.pruning {
		run.AfterFunc("gateway: idle connections", p.IdleTimeout/2, p.prune)
	}
}

// Close ends the idle connections. Those in use end with their request.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.idle {
		_ = c.nc.Close()
	}
	p.idle = nil
	return nil
}

func (p *Pool) dial(ctx context.Context) (*backConn, error) {
	nc, socket, err := p.Dial(ctx)
	if err != nil {
		return nil, &NotMadeError{err}
	}
	return p.connection(nc, socket), nil
}

func (p *Pool) connection(nc, socket net.Conn) *backConn {
	c := &backConn{pool: p, nc: nc}
	c.reader = reader{conn: nc, waiter: c}
	if of, ok := socket.(syscall.Conn); ok {
		if raw, err := of.SyscallConn(); err == nil {
			c.raw = raw
			encrypted := nc != socket
			c.check = func(fd uintptr) bool {
				var b [1]byte
				n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
				// An endpoint that speaks TLS may send session tickets late; an alert is its end.
				c.dead = err != unix.EAGAIN && !(encrypted && err == nil && n == 1 && b[0] == 23)
				return true
			}
			if !encrypted {
				c.visit = c.visited
			}
		}
	}
	return c
}

// wait is the reader's.
func (c *backConn) wait(since time.Time) error {
	if err := c.ctx.Err(); err != nil {
		return context.Cause(c.ctx)
	}
	// An endpoint that still gets the request is not silent.
	if at := time.Unix(0, c.sentAt.Load()); at.After(since) {
		since = at
	}
	if c.pool.ReadTimeout > 0 && time.Since(since) >= c.pool.ReadTimeout {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// RoundTrip sends a request and reads the answer's head. The answer, with its header, is
// valid until its body is closed. A request whose body is http.NoBody or nil, and whose
// method allows that it is sent twice, is sent again if a connection that was kept turns
// out to be closed. The request's body is not read any more once the answer's is closed.
func (p *Pool) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		c := p.take()
		fresh := c == nil
		if fresh {
			var err error
			if c, err = p.dial(r.Context()); err != nil {
				return nil, err
			}
		}
		answer, err := c.roundTrip(r, !fresh)
		if err == nil {
			return answer, nil
		}
		c.end(false)
		if err == errGone {
			continue // nothing was sent, and nothing of the body was read
		}
		if fresh || c.answered || r.Context().Err() != nil || !repeatable(r) || isTimeout(err) {
			return nil, err
		}
	}
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

func repeatable(r *http.Request) bool {
	if r.Body != nil && r.Body != http.NoBody {
		return false
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// maxGatheredBody is how long a body may be to be sent with the head, by one write.
const maxGatheredBody = 16 << 10

// errGone is of a connection that was kept and that the endpoint has closed meanwhile.
var errGone = errors.New("the endpoint has closed the connection")

func (c *backConn) roundTrip(r *http.Request, kept bool) (*http.Response, error) {
	c.ctx, c.answered, c.keep, c.stop = r.Context(), false, true, nil
	c.reader.limit, _ = c.ctx.Deadline()
	if r.ProtoMajor == 2 {
		// The streams of one connection end on their own; the server of HTTP/1 has
		// its requests' contexts looked at.
		c.stop = context.AfterFunc(c.ctx, func() { _ = c.nc.SetReadDeadline(time.Unix(1, 0)) })
	}
	hasBody := r.Body != nil && r.Body != http.NoBody
	c.sentAt.Store(0)
	if kept && (hasBody || c.visit == nil) {
		if c.gone() {
			return nil, errGone
		}
		kept = false
	}
	c.appendHead(r, hasBody)
	if hasBody && r.ContentLength >= 0 && r.ContentLength <= maxGatheredBody {
		n := len(c.out)
		c.out = append(c.out, make([]byte, r.ContentLength)...)
		if _, err := io.ReadFull(r.Body, c.out[n:]); err != nil {
			return nil, err
		}
		hasBody = false
	}
	if hasBody || c.visit == nil {
		if err := c.write(c.out); err != nil && !hasBody {
			return nil, err
		}
	} else if err := c.ask(kept); err != nil {
		return nil, c.cause(err)
	}
	c.out = c.out[:0]
	if hasBody {
		c.sending = c.send(r)
	}
	for range maxInformational {
		c.reader.next()
		head, err := c.reader.head()
		if err != nil {
			return nil, c.cause(err)
		}
		c.answered = true
		again, err := c.readAnswer(r, head)
		if err != nil {
			return nil, err
		}
		if !again {
			return &c.response, nil
		}
	}
	return nil, errHead
}

// ask sends what is to be sent and waits for the first bytes of the answer in one visit to
// the poller: who waits by a visit of its own must look for them first, in vain. With look
// it sees first whether the endpoint has closed the connection.
func (c *backConn) ask(look bool) error {
	c.look, c.sent, c.failed = look, 0, nil
	c.reader.acquire()
	c.reader.since = time.Now()
	c.reader.arm(c.reader.since)
	for {
		err := c.raw.Read(c.visit)
		switch {
		case err == nil && c.failed == nil && c.sent < len(c.out):
			return c.write(c.out[c.sent:]) // the socket is full
		case err == nil:
			return c.failed
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
		if err := c.reader.again(); err != nil {
			return err
		}
	}
}

// visited does what can be done now, and reports whether that was all.
func (c *backConn) visited(fd uintptr) bool {
	if c.look {
		if c.check(fd); c.dead {
			c.failed = errGone
			return true
		}
		c.look = false
	}
	if c.sent < len(c.out) {
		var n int
		n, c.failed = socket.Write(int(fd), c.out[c.sent:])
		c.sent += n
		return c.failed != nil || c.sent < len(c.out)
	}
	n, err := socket.Read(int(fd), c.reader.buf[c.reader.to:])
	if err == socket.Nothing {
		return false
	}
	c.reader.to += n
	c.failed = err
	return true
}

// maxInformational is how many answers of 1xx may come before the one that counts.
const maxInformational = 8

// cause is why a read failed: the request's end or its body's if that was it.
func (c *backConn) cause(err error) error {
	if c.sending != nil {
		if bodyErr := c.sending.failure(); bodyErr != nil {
			return bodyErr
		}
	}
	if cause := context.Cause(c.ctx); cause != nil {
		return cause
	}
	if c.reader.from < c.reader.to {
		c.answered = true
	}
	return err
}

func (c *backConn) appendHead(r *http.Request, hasBody bool) {
	out := append(append(c.out[:0], r.Method...), ' ')
	out = append(out, r.RequestURI...)
	out = append(append(append(out, " HTTP/1.1\r\nHost: "...), r.Host...), "\r\n"...)
	for name, values := range r.Header {
		switch name {
		case "Content-Length", "Transfer-Encoding", "Host":
			continue
		case "User-Agent":
			if len(values) == 1 && values[0] == "" {
				continue
			}
		}
		out = appendField(out, name, values)
	}
	switch {
	case hasBody && r.ContentLength < 0:
		out = append(out, "Transfer-Encoding: chunked\r\n"...)
	case hasBody || r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch:
		out = append(out, "Content-Length: "...)
		out = strconv.AppendInt(out, max(r.ContentLength, 0), 10)
		out = append(out, "\r\n"...)
	}
	c.out = append(out, "\r\n"...)
}

func (c *backConn) write(b []byte) error {
	if now := time.Now(); c.writeBy.Sub(now) < c.pool.WriteTimeout/2 {
		c.writeBy = now.Add(c.pool.WriteTimeout)
		_ = c.nc.SetWriteDeadline(c.writeBy)
	}
	_, err := c.nc.Write(b)
	return err
}

// readAnswer makes an answer of a head; again says that another head follows.
func (c *backConn) readAnswer(r *http.Request, head string) (again bool, err error) {
	end := indexByte([]byte(head[:min(len(head), 512)]), '\n')
	if end < 1 {
		return false, errHead
	}
	status, http10, err := parseStatusLine(head[:end-1])
	if err != nil {
		return false, err
	}
	c.fields.reset()
	if err := c.fields.parse(head[end+1:]); err != nil {
		return false, err
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		return true, nil
	}
	h := c.fields.header
	c.response = http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h, Request: r}
	if status == http.StatusSwitchingProtocols {
		c.stopWatch()
		_ = c.nc.SetDeadline(time.Time{})
		c.response.Body = &upgraded{c}
		return false, nil
	}
	length, chunked, err := framing(h, http10)
	if err != nil {
		return false, err
	}
	connection := h["Connection"]
	if hasToken(connection, "close") || http10 && !hasToken(connection, "keep-alive") {
		c.keep = false
	}
	kind := bodyUntilClose
	switch {
	case r.Method == http.MethodHead, status == http.StatusNoContent, status == http.StatusNotModified:
		kind = bodyNone
	case chunked:
		kind = bodyChunked
	case length >= 0:
		kind = bodyLength
	default:
		c.keep = false
	}
	c.response.ContentLength = length
	c.body.c, c.body.closed = c, false
	c.body.start(&c.reader, kind, length)
	c.response.Body = &c.body
	return false, nil
}

func (c *backConn) stopWatch() {
	if c.stop != nil && !c.stop() {
		c.keep = false // its deadline is past
	}
	c.stop = nil
}

// end gives the connection back, or closes it.
func (c *backConn) end(ended bool) {
	c.stopWatch()
	if c.sending != nil {
		if !c.sending.finish() {
			c.keep = false
		}
		c.sending = nil
	}
	keep := c.keep && ended && c.reader.from == c.reader.to
	c.ctx, c.response, c.reader.limit = nil, http.Response{}, time.Time{}
	if !keep {
		_ = c.nc.Close()
		return
	}
	if cap(c.out) > 2*maxGatheredBody {
		c.out = nil
	}
	c.pool.put(c)
}
