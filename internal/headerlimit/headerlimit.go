// Package headerlimit bounds what clients of an HTTPS server hold before it is known who they
// are: connections, headers, and requests that are refused. A header of short lines takes
// fourteen times its length, and one of HTTP/2 more for each byte that is sent. It reads what
// connections are at, and closes some.
package headerlimit

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"knarr/internal/connlimit"
)

// Bounds of every such server.
const (
	// MaxLines is how many lines a header may have: those of a known user are held as long
	// as the request takes.
	MaxLines = 2000
	// FreeHeader is what every connection may have of a header whose user is not known yet;
	// more is out of HeaderPool bytes for all of a server. When these are gone, the connection
	// that holds most is closed.
	FreeHeader = 4 << 10
	HeaderPool = 8 << 20
	// bodyTime is how long the body of a request may take until another time is set: that of
	// one that is refused HTTP/1 reads before it answers.
	bodyTime = 10 * time.Second
)

// answerTime is how long the answer to somebody who is not known may take, where the server
// says nothing of that: a window of HTTP/2 can stay shut.
var answerTime = 30 * time.Second

var errHeaders = errors.New("too much is held of headers whose users are not known")

// Bound has srv take what such clients hold into account, and gives the listener that it is to
// be served on. There are so many connections on which nobody is known, and one more has the
// oldest of the client with most closed. closed is called with why for each that is.
func Bound(srv *http.Server, ln net.Listener, connections int, closed func(why string, client netip.Addr)) net.Listener {
	before := srv.ConnContext
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if of := underneath(c); of != nil {
			ctx = context.WithValue(ctx, connKey{}, of)
		}
		if before != nil {
			ctx = before(ctx, c)
		}
		return ctx
	}
	srv.ConnState, srv.Handler = state, bounded(srv.Handler, srv.WriteTimeout > 0)
	newest := connlimit.Listen(ln, connections, func(client netip.Addr) {
		closed("a connection is closed for a newer one: nobody was authenticated on it, and there are too many such", client)
	})
	return &listener{newest, &pool{held: map[*Conn]int{}, of: map[netip.Addr]int{}, closed: func(client netip.Addr) {
		closed("a connection is closed: too much is held of headers whose users are not known, most of it by this client", client)
	}}}
}

// Known says that the user of a request was let in: what its connection holds does not count
// any longer, and the answer may take as long as the server lets it.
func Known(r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*Conn)
	if !ok {
		return
	}
	if w, ok := r.Context().Value(answerKey{}).(http.ResponseWriter); ok {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	}
	if r.ProtoMajor == 2 {
		c.off.Store(true)
	}
	c.forget()
	c.counted.Leave()
}

// Refused says that a request is refused: what it still has of a body has to come in time,
// whatever time was set for it.
func Refused(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	}
}

type connKey struct{}

// answerKey is of the answer, where it has a time until its user is known.
type answerKey struct{}

type listener struct {
	net.Listener
	pool *pool
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	counted := c.(*connlimit.Conn)
	made := &Conn{Conn: counted.Conn, counted: counted, pool: l.pool}
	if at, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		made.client = connlimit.Client(at.AddrPort().Addr())
	}
	return made, nil
}

// A Conn counts what comes by it before the user of a request is known, as it is encrypted.
type Conn struct {
	net.Conn // the one below all
	counted  *connlimit.Conn
	pool     *pool
	client   netip.Addr
	off      atomic.Bool  // a request is being answered, or the user of HTTP/2 is known
	read     atomic.Int64 // of a header
}

func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.off.Load() {
		return n, err
	}
	if over := int(c.read.Add(int64(n))) - FreeHeader; over > 0 && !c.pool.take(c, min(over, n)) {
		return 0, errHeaders
	}
	return n, err
}

func (c *Conn) Close() error { return c.counted.Close() }

// forget gives back what was read.
func (c *Conn) forget() {
	if c.read.Swap(0) > FreeHeader {
		c.pool.give(c)
	}
}

// underneath is the connection of such a listener's that others are on, or nil.
func underneath(c net.Conn) *Conn {
	for {
		switch of := c.(type) {
		case *Conn:
			return of
		case interface{ NetConn() net.Conn }:
			c = of.NetConn()
		default:
			return nil
		}
	}
}

// state follows what a connection is at.
func state(c net.Conn, now http.ConnState) {
	of := underneath(c)
	if of == nil {
		return
	}
	switch now {
	case http.StateActive:
		if t, ok := c.(*tls.Conn); ok && t.ConnectionState().NegotiatedProtocol == "h2" {
			return // the headers of others may come
		}
		of.off.Store(true) // what comes is the body
	case http.StateIdle:
		of.forget()
		of.off.Store(false)
	case http.StateHijacked, http.StateClosed:
		of.off.Store(true)
		of.forget()
	}
}

// A pool is what is read of headers whose users are not known.
type pool struct {
	closed func(client netip.Addr)

	mu   sync.Mutex
	all  int
	held map[*Conn]int
	of   map[netip.Addr]int
}

// take lets a connection hold more, if need be in place of those that hold most of the client
// that does.
func (p *pool) take(c *Conn, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.off.Load() {
		return true // what it held was given back meanwhile
	}
	p.add(c, n)
	for p.all > HeaderPool {
		most := p.most()
		p.closed(most.client)
		p.remove(most)
		if most == c {
			return false
		}
		_ = most.Close()
	}
	return true
}

// most is the connection that holds most of the client whose connections do. There is one.
func (p *pool) most() (most *Conn) {
	for c, held := range p.held {
		if most == nil || p.of[c.client] > p.of[most.client] || c.client == most.client && held > p.held[most] {
			most = c
		}
	}
	return most
}

func (p *pool) add(c *Conn, n int) {
	p.all += n
	p.held[c] += n
	p.of[c.client] += n
}

func (p *pool) give(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(c)
}

func (p *pool) remove(c *Conn) {
	p.add(c, -p.held[c])
	delete(p.held, c)
	if p.of[c.client] == 0 {
		delete(p.of, c.client)
	}
}

// bounded refuses requests with headers of too many lines, and has bodies come in time unless
// somebody says otherwise by the request's http.ResponseController, and answers be taken in
// time where the server does not.
func bounded(next http.Handler, limited bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Refused(w, r) // until it is known that it is not
		if !limited {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
			r = r.WithContext(context.WithValue(r.Context(), answerKey{}, w))
		}
		lines := 0
		for _, values := range r.Header {
			lines += len(values)
		}
		if lines > MaxLines {
			w.Header().Set("Connection", "close")
			http.Error(w, "the header has more lines than a request may have", http.StatusRequestHeaderFieldsTooLarge)
			return
		}
		next.ServeHTTP(w, r)
	})
}
