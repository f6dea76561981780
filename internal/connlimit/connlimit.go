// Package connlimit bounds the connections of a listener, all together and those of one
// client. It reads the addresses of clients.
package connlimit

import (
	"net"
	"net/netip"
	"sync"
)

// Listen is ln with at most so many connections that are accepted and not closed yet, and half
// of them for one client, so that one alone shuts nobody out. Those beyond are closed at once:
// who may connect need not be anybody that is let in. Refused is called for each of those.
func Listen(ln net.Listener, most int, refused func(client netip.Addr)) net.Listener {
	return &listener{Listener: ln, most: most, refused: refused, by: map[netip.Addr]int{}}
}

// Client is whom an address is counted for: addresses of one IPv6 network of 64 bits are one.
func Client(at netip.Addr) netip.Addr {
	at = at.Unmap().WithZone("")
	if at.Is6() {
		if network, err := at.Prefix(64); err == nil {
			return network.Addr()
		}
	}
	return at
}

type listener struct {
	net.Listener
	most    int
	refused func(client netip.Addr)

	mu  sync.Mutex
	all int
	by  map[netip.Addr]int
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var of netip.Addr
		if at, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			of = Client(at.AddrPort().Addr())
		}
		if l.enter(of) {
			return &Conn{Conn: c, leave: sync.OnceFunc(func() { l.leave(of) })}, nil
		}
		_ = c.Close()
		l.refused(of)
	}
}

func (l *listener) enter(client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.most || l.by[client] >= max(1, l.most/2) {
		return false
	}
	l.all++
	l.by[client]++
	return true
}

func (l *listener) leave(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.by[client]--; l.by[client] == 0 {
		delete(l.by, client)
	}
}

// A Conn is one of such a listener's.
type Conn struct {
	net.Conn
	leave func()
}

// Leave has the connection, which stays, count no longer. It can be called again.
func (c *Conn) Leave() { c.leave() }

func (c *Conn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
