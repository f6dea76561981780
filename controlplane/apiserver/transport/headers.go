package transport

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
)

// What clients can hold here before anybody asks who they are. A header of a mebibyte, which
// commands of exec and lists of selectors may need, takes 14 MiB if it is of short lines, and
// one of HTTP/2 more for each byte that is sent.
const (
	// maxUnauthenticated is how many connections there are on which nobody was authenticated.
	// One more has the oldest of the client with most closed.
	maxUnauthenticated = 2000
	// maxHeader bounds a header, maxStreamHeader one of HTTP/2, which counts 32 bytes for each
	// line; maxLines is how many lines it may have.
	maxHeader       = 1 << 20
	maxStreamHeader = 256 << 10
	maxLines        = 2000
	// freeHeader is what every connection may have of a header whose user is not known yet;
	// more is out of headerPool bytes for all of them. When these are gone, the connection
	// that holds most is closed.
	freeHeader = 4 << 10
	headerPool = 8 << 20
	// bodyTime is how long the body of a request may take until another time is set: that of
	// one that is refused HTTP/1 reads before it answers.
	bodyTime = 10 * time.Second
)

var errHeaders = errors.New("too much is held of headers whose users are not known")

// A pool is what is read of headers whose users are not known.
type pool struct {
	refused func(client netip.Addr)

	mu   sync.Mutex
	all  int
	held map[*headerMeter]int
}

// take lets a connection hold more, if need be in place of those that hold most.
func (p *pool) take(m *headerMeter, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		p.held = map[*headerMeter]int{}
	}
	for p.all+n > headerPool {
		var most *headerMeter
		for other, held := range p.held {
			if most == nil || held > p.held[most] {
				most = other
			}
		}
		if most == nil || most == m || p.held[most] < p.held[m]+n {
			p.refused(m.client)
			return false
		}
		p.refused(most.client)
		p.remove(most)
		_ = most.conn.Close()
	}
	p.all += n
	p.held[m] += n
	return true
}

func (p *pool) give(m *headerMeter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(m)
}

func (p *pool) remove(m *headerMeter) {
	p.all -= p.held[m]
	delete(p.held, m)
}

// A headerMeter counts what comes by a connection before its user is known, as it is encrypted.
type headerMeter struct {
	pool    *pool
	conn    net.Conn
	client  netip.Addr
	streams atomic.Bool  // it is HTTP/2
	off     atomic.Bool  // a request is being answered
	read    atomic.Int64 // of a header
}

// count takes note of what was read, and gives an error if it is too much.
func (m *headerMeter) count(n int) error {
	if m.pool == nil || m.off.Load() {
		return nil
	}
	if over := int(m.read.Add(int64(n))) - freeHeader; over > 0 && !m.pool.take(m, min(over, n)) {
		return errHeaders
	}
	return nil
}

// forget gives back what was read.
func (m *headerMeter) forget() {
	if m.read.Swap(0) > freeHeader {
		m.pool.give(m)
	}
}

// underneath is the connection that TLS is on, or nil.
func underneath(c net.Conn) *coalescingConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	raw, _ := c.(*coalescingConn)
	return raw
}

// meterHeaders follows what a connection of HTTP/1 is at.
func meterHeaders(c net.Conn, state http.ConnState) {
	raw := underneath(c)
	if raw == nil || raw.headers.pool == nil {
		return
	}
	switch state {
	case http.StateActive:
		raw.headers.off.Store(true) // what comes is the body
	case http.StateIdle:
		raw.headers.forget()
		raw.headers.off.Store(false)
	case http.StateHijacked, http.StateClosed:
		raw.headers.off.Store(true)
		raw.headers.forget()
	}
}

type connKey struct{}

// keepConn gives the requests of a connection what Known needs.
func keepConn(ctx context.Context, c net.Conn) context.Context {
	if raw := underneath(c); raw != nil && raw.counted != nil {
		return context.WithValue(ctx, connKey{}, raw)
	}
	return ctx
}

// Known says that the user of a request was authenticated: what its connection holds does
// not count any longer.
func Known(ctx context.Context) {
	c, ok := ctx.Value(connKey{}).(*coalescingConn)
	if !ok {
		return
	}
	if m := &c.headers; m.pool != nil {
		if m.streams.Load() {
			m.off.Store(true)
		}
		m.forget()
	}
	c.counted.Leave()
}

// boundHeaders refuses requests with headers of too many lines, and has bodies come in time
// unless somebody says otherwise by the request's http.ResponseController.
func boundHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && r.ContentLength != 0 {
			if c, ok := r.Context().Value(connKey{}).(*coalescingConn); ok {
				_ = c.SetReadDeadline(time.Now().Add(bodyTime))
			}
		}
		lines := 0
		for _, values := range r.Header {
			lines += len(values)
		}
		if lines > maxLines {
			w.Header().Set("Connection", "close")
			http.Error(w, "the header has more lines than a request may have", http.StatusRequestHeaderFieldsTooLarge)
			return
		}
		next.ServeHTTP(w, r)
	})
}
