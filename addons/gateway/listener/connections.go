package listener

import (
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
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
// Addresses of one IPv6 network of 64 bits are one.
type connections struct {
	mu    sync.Mutex
	most  int
	total int
	by    map[netip.Addr]int
}

func newConnections(most int) *connections {
	return &connections{most: max(most, 2), by: map[netip.Addr]int{}}
}

// enter counts a connection in, unless there are too many.
func (c *connections) enter(client netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total >= c.most || c.by[client] >= c.most/2 {
		return false
	}
	c.total++
	c.by[client]++
	return true
}

func (c *connections) leave(client netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.by[client]--; c.by[client] <= 0 {
		delete(c.by, client)
	}
}

// clientOf is whom a socket is counted for.
func clientOf(socket net.Conn) netip.Addr {
	at, ok := socket.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return networkOf(at.AddrPort().Addr())
}

// networkOf is whom an address is counted for.
func networkOf(client netip.Addr) netip.Addr {
	client = client.Unmap().WithZone("")
	if client.Is6() {
		if network, err := client.Prefix(64); err == nil {
			return network.Addr()
		}
	}
	return client
}
