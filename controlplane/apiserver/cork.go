package apiserver

import (
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// oneRecord is the most that a TLS record holds.
	oneRecord = 16 << 10
	// unsentMost is what the kernel holds of what a client has no room for. It
	// would take 4 MB: with a thousand clients that read nothing, TCP's memory is
	// at its end and every connection of the host is slow.
	unsentMost = 256 << 10
)

// A corking listener accepts corked connections.
type corking struct{ net.Listener }

func (l corking) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentMost) // not TCP: it bounds itself
			})
		}
	}
	return &corked{Conn: c}, nil
}

// A corked connection can keep the records that TLS makes of one long piece, and
// hand all to the kernel at once: TLS makes a system call for each, and each
// wakes the client.
type corked struct {
	net.Conn
	mu   sync.Mutex
	kept *[]byte // nil: what is written is sent
}

func (c *corked) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		return c.Conn.Write(p)
	}
	*c.kept = append(*c.kept, p...)
	return len(p), nil
}

// cork has what is written kept until the returned function sends it.
func (c *corked) cork() (send func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = pieces.Get().(*[]byte)
	return c.uncork
}

func (c *corked) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.kept
	c.kept = nil
	_, err := c.Conn.Write(*kept)
	*kept = (*kept)[:0]
	pieces.Put(kept)
	return err
}
