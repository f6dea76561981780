// Package connlimit bounds the connections of a listener, fairly among its clients. It reads
// their addresses.
package connlimit

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// Listen is ln with so many connections that are accepted and have neither been closed nor told
// to Leave. One more has the oldest of the client that has most closed, so that who takes all
// the places shuts nobody out who soon leaves. Closed is called for its client.
func Listen(ln net.Listener, most int, closed func(client netip.Addr)) net.Listener {
	return &listener{Listener: ln, most: most, closed: closed, by: map[netip.Addr]*list.List{}}
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
	most   int
	closed func(client netip.Addr)

	mu  sync.Mutex
	all int
	seq uint64
	by  map[netip.Addr]*list.List // of *Conn, the oldest first; none is empty
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	made := &Conn{Conn: c, of: l}
	if at, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		made.client = Client(at.AddrPort().Addr())
	}
	if victim := l.enter(made); victim != nil {
		_ = victim.Conn.Close()
		l.closed(victim.client)
	}
	return made, nil
}

// enter counts a connection, and gives the one that is to be closed for it, if one is.
func (l *listener) enter(c *Conn) (victim *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.most {
		victim = l.oldestOfMost()
		l.remove(victim)
	}
	has := l.by[c.client]
	if has == nil {
		has = list.New()
		l.by[c.client] = has
	}
	l.all++
	l.seq++
	c.seq, c.at = l.seq, has.PushBack(c)
	return victim
}

// oldestOfMost is the oldest connection of the client that has most. There is one.
func (l *listener) oldestOfMost() (oldest *Conn) {
	most := 0
	for _, all := range l.by {
		first := all.Front().Value.(*Conn)
		if n := all.Len(); n > most || n == most && first.seq < oldest.seq {
			most, oldest = n, first
		}
	}
	return oldest
}

func (l *listener) remove(c *Conn) {
	if c.at == nil {
		return
	}
	all := l.by[c.client]
	all.Remove(c.at)
	c.at = nil
	if l.all--; all.Len() == 0 {
		delete(l.by, c.client)
	}
}

// A Conn is one of such a listener's.
type Conn struct {
	net.Conn
	of     *listener
	client netip.Addr
	seq    uint64
	at     *list.Element // nil: it does not count
}

// Leave has the connection, which stays, count no longer. It can be called again.
func (c *Conn) Leave() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.remove(c)
}

func (c *Conn) Close() error {
	defer c.Leave()
	return c.Conn.Close()
}
