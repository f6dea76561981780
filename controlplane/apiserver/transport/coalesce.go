package transport

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/headerlimit"
)

const (
	// maxRecord is the most that a TLS record holds.
	maxRecord = 16 << 10
	// maxUnsent is what the kernel holds of what a client has no room for. It
	// would take 4 MB: with a thousand clients that read nothing, TCP's memory is
	// at its end and every connection of the host is slow.
	maxUnsent = 256 << 10
)

// A coalescingListener accepts coalescing connections.
type coalescingListener struct{ net.Listener }

func (l coalescingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	under := c
	if of, ok := c.(*headerlimit.Conn); ok {
		under = of.Conn
	}
	if s, ok := under.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent) // not TCP: it bounds itself
			})
		}
	}
	return &coalescingConn{Conn: c}, nil
}

// A coalescingConn can keep the records that TLS makes of one long batch, and
// hand all to the kernel at once: TLS makes a system call for each, and each
// wakes the client.
type coalescingConn struct {
	net.Conn
	mu   sync.Mutex
	held *[]byte // nil: what is written is sent
	// stall is how long a client may take nothing at all of what is sent; zero: as
	// long as it wants. To be set before anything is written.
	stall time.Duration

	deadlineMu sync.Mutex
	deadline   time.Time // for all that is written
}

// NetConn is what is underneath.
func (c *coalescingConn) NetConn() net.Conn { return c.Conn }

// SetWriteDeadline bounds all that is written, however much of it is taken.
func (c *coalescingConn) SetWriteDeadline(t time.Time) error {
	c.deadlineMu.Lock()
	defer c.deadlineMu.Unlock()
	c.deadline = t
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline bounds reads, too.
func (c *coalescingConn) SetDeadline(t time.Time) error {
	return errors.Join(c.Conn.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// extendDeadline gives the client time to take something; false when its time is over.
func (c *coalescingConn) extendDeadline() bool {
	c.deadlineMu.Lock()
	defer c.deadlineMu.Unlock()
	now := time.Now()
	until := now.Add(c.stall)
	if !c.deadline.IsZero() && c.deadline.Before(until) {
		until = c.deadline
	}
	return until.After(now) && c.Conn.SetWriteDeadline(until) == nil
}

// restoreDeadline leaves the deadline as it was set.
func (c *coalescingConn) restoreDeadline() {
	c.deadlineMu.Lock()
	defer c.deadlineMu.Unlock()
	_ = c.Conn.SetWriteDeadline(c.deadline)
}

// send sends p, for as long as its client goes on taking it.
func (c *coalescingConn) send(p []byte) (n int, err error) {
	if c.stall == 0 {
		return c.Conn.Write(p)
	}
	defer c.restoreDeadline()
	for {
		if !c.extendDeadline() {
			return n, os.ErrDeadlineExceeded
		}
		m, err := c.Conn.Write(p[n:])
		n += m
		if m == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}

func (c *coalescingConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return c.send(p)
	}
	*c.held = append(*c.held, p...)
	return len(p), nil
}

// coalesce has what is written kept until the returned function sends it.
func (c *coalescingConn) coalesce() (flush func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = buffers.Get().(*[]byte)
	return c.flush
}

func (c *coalescingConn) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := c.held
	c.held = nil
	_, err := c.send(*held)
	*held = (*held)[:0]
	buffers.Put(held)
	return err
}
