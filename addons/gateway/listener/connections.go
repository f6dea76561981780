package listener

import (
	"container/list"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"knarr/internal/connlimit"
)

// maxConnections is how many clients may be connected at most, however many files may be
// open.
const maxConnections = 1 << 16

// opened counts the connections of all ports.
var opened = newConnections(mostConnections())

// mostConnections leaves two thirds of the files that may be open to the rest: each
// connection may need one more to a backend.
func mostConnections() int {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return maxConnections
	}
	return int(min(files.Cur/3, maxConnections))
}

// connections bounds how many there are, and how many of them one address has: half, so
// that one client alone shuts nobody out, and many behind one address still have room.
// Addresses of one IPv6 network of 64 bits are one. Where there is no room, the connection
// that has been idle the longest makes some: idle ones, however many, shut nobody out.
type connections struct {
	mu    sync.Mutex
	most  int
	total int
	by    map[netip.Addr]*clientConnections
	idle  list.List // of *place, the longest idle first
}

// clientConnections are those of one client.
type clientConnections struct {
	total int
	idle  list.List
}

// A place is that of one connection.
type place struct {
	all    *connections
	client netip.Addr
	// end ends the connection while it is idle; idle are its elements of the lists then.
	end   func()
	idle  [2]*list.Element
	ended bool // it has made room
	users int  // goroutines that serve the connection
}

func newConnections(most int) *connections {
	return &connections{most: max(most, 2), by: map[netip.Addr]*clientConnections{}}
}

// enter counts a connection in; nil if there are too many, none of which is idle.
func (c *connections) enter(client netip.Addr) *place {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.by[client]
	switch {
	case of != nil && of.total >= c.most/2:
		if !evict(&of.idle) {
			return nil
		}
	case c.total >= c.most:
		if !evict(&c.idle) {
			return nil
		}
	}
	if of = c.by[client]; of == nil {
		of = &clientConnections{}
		c.by[client] = of
	}
	c.total++
	of.total++
	return &place{all: c, client: client, users: 1}
}

// evict ends the connection that has been idle the longest, if there is one.
func evict(of *list.List) bool {
	first := of.Front()
	if first == nil {
		return false
	}
	p := first.Value.(*place)
	p.ended = true
	p.end()
	p.unlist()
	p.countOut()
	return true
}

func (p *place) unlist() {
	if p.idle[0] != nil {
		p.all.idle.Remove(p.idle[0])
		p.all.by[p.client].idle.Remove(p.idle[1])
	}
	p.idle, p.end = [2]*list.Element{}, nil
}

func (p *place) countOut() {
	p.all.total--
	of := p.all.by[p.client]
	if of.total--; of.total == 0 {
		delete(p.all.by, p.client)
	}
}

// share lets another goroutine serve the connection, and leave too.
func (p *place) share() {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	p.users++
}

// leave counts the connection out when nobody else serves it.
func (p *place) leave() {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	if p.users--; p.users == 0 && !p.ended {
		p.unlist()
		p.countOut()
		p.ended = true
	}
}

// Park is of socket.Idler.
func (p *place) Park(end func()) {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	if p.ended || p.idle[0] != nil {
		return
	}
	p.end = end
	p.idle = [2]*list.Element{p.all.idle.PushBack(p), p.all.by[p.client].idle.PushBack(p)}
}

// Unpark is of socket.Idler.
func (p *place) Unpark() bool {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	if p.ended {
		return false
	}
	p.unlist()
	return true
}

// clientOf is whom a socket is counted for.
func clientOf(socket net.Conn) netip.Addr {
	at, ok := socket.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return connlimit.Client(at.AddrPort().Addr())
}
