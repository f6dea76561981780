package dns

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// fairLimiter are so many, and shared fairly: a client gets another only while more
// are free than it has. One client alone can have half of all, two a third
// each, and whoever comes next still finds some.
type fairLimiter struct {
	mu    sync.Mutex
	free  int
	inUse map[netip.Addr]int
}

func newFairLimiter(n int) *fairLimiter { return &fairLimiter{free: n, inUse: map[netip.Addr]int{}} }

func (p *fairLimiter) take(client netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inUse[client] >= p.free {
		return false
	}
	p.inUse[client]++
	p.free--
	return true
}

func (p *fairLimiter) release(client netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free++
	if p.inUse[client]--; p.inUse[client] == 0 {
		delete(p.inUse, client)
	}
}

// clientOf is the address of a client, or none.
func clientOf(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// sharedListener closes the connections of a client that has its share, or is not
// answered at all.
type sharedListener struct {
	net.Listener
	limiter *fairLimiter
	answers func(netip.Addr) bool
}

func (l sharedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(c.RemoteAddr())
		if l.answers(client) && l.limiter.take(client) {
			return &sharedConn{Conn: c, release: sync.OnceFunc(func() { l.limiter.release(client) })}, nil
		}
		c.Close()
	}
}

type sharedConn struct {
	net.Conn
	release func()
}

// writeTime is how long a client may take to read an answer by TCP. One that never
// does would hold its places, and the server's end, for good.
const writeTime = 2 * time.Second

func (c *sharedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *sharedConn) Close() error {
	c.release()
	return c.Conn.Close()
}
