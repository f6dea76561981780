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

	"knarr/internal/connlimit"
)

// What clients can hold here before anybody asks who they are. A header of a mebibyte, which
// commands of exec and lists of selectors may need, takes 14 MiB if it is of short lines, until
// its end comes or its time is over.
const (
	// maxUnauthenticated is how many connections there are, half of them of one client, on which
	// nobody has been authenticated.
	maxUnauthenticated = 2000
	// maxHeader bounds a header, maxStreamHeader one of HTTP/2, which counts its lines.
	maxHeader       = 1 << 20
	maxStreamHeader = 256 << 10
	// freeHeader is what every connection may have read of a header that is not complete;
	// more is out of headerPool bytes for all of them, half of which one client can have.
	freeHeader = 8 << 10
	headerPool = 8 << 20
)

var errHeaders = errors.New("too much is held of headers that are not complete")

// A pool is what may be read of headers of HTTP/1 that are not complete, by client.
type pool struct {
	mu  sync.Mutex
	all int
	by  map[netip.Addr]int
}

func (p *pool) take(client netip.Addr, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all+n > headerPool || p.by[client]+n > headerPool/2 {
		return false
	}
	if p.by == nil {
		p.by = map[netip.Addr]int{}
	}
	p.all += n
	p.by[client] += n
	return true
}

func (p *pool) give(client netip.Addr, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all -= n
	if p.by[client] -= n; p.by[client] <= 0 {
		delete(p.by, client)
	}
}

// A headerMeter counts what comes by a connection while no request of it is being answered,
// as it is encrypted.
type headerMeter struct {
	pool    *pool
	client  netip.Addr
	refused func(client netip.Addr)
	off     atomic.Bool // a request is being answered, or it is HTTP/2

	mu    sync.Mutex
	read  int
	taken int
}

// count takes note of what was read, and gives an error if it is too much.
func (m *headerMeter) count(n int) error {
	if m.pool == nil || m.off.Load() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read += n
	more := m.read - freeHeader - m.taken
	if more <= 0 {
		return nil
	}
	if !m.pool.take(m.client, more) {
		m.refused(m.client)
		return errHeaders
	}
	m.taken += more
	return nil
}

// stop ends the count, and begin starts the next one.
func (m *headerMeter) stop() {
	m.off.Store(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken > 0 {
		m.pool.give(m.client, m.taken)
	}
	m.read, m.taken = 0, 0
}

func (m *headerMeter) begin() { m.off.Store(false) }

// underneath is the connection that TLS is on, or nil.
func underneath(c net.Conn) *coalescingConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	raw, _ := c.(*coalescingConn)
	return raw
}

// meterHeaders follows what a connection is at.
func meterHeaders(c net.Conn, state http.ConnState) {
	raw := underneath(c)
	if raw == nil {
		return
	}
	switch state {
	case http.StateActive, http.StateHijacked, http.StateClosed:
		raw.headers.stop()
	case http.StateIdle:
		if t, ok := c.(*tls.Conn); ok && t.ConnectionState().NegotiatedProtocol != "h2" {
			raw.headers.begin()
		}
	}
}

type connKey struct{}

// keepConn gives the requests of a connection what Known needs.
func keepConn(ctx context.Context, c net.Conn) context.Context {
	if raw := underneath(c); raw != nil && raw.counted != nil {
		return context.WithValue(ctx, connKey{}, raw.counted)
	}
	return ctx
}

// Known says that the user of a request was authenticated: its connection does not
// count any longer among those on which nobody was.
func Known(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*connlimit.Conn); ok {
		c.Leave()
	}
}
