// Package socket reads the sockets of connections by fewer system calls than net.Conn does,
// which looks for bytes each time before it waits for them, mostly in vain. It reads and
// writes sockets that others have opened.
package socket

import (
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Nothing is what Read returns within Poll when there is nothing to read now. It is
// temporary, so that crypto/tls reads on afterwards.
var Nothing error = nothing{}

type nothing struct{}

func (nothing) Error() string   { return "nothing has come" }
func (nothing) Timeout() bool   { return false }
func (nothing) Temporary() bool { return true }

// A Conn is a connection that can be polled. Whatever is wrapped around it, such as
// TLS, can then be too, if it passes Nothing on.
type Conn struct {
	net.Conn
	// Known says that a read that brought less than it had room for left nothing behind. It
	// is set once a first message was answered: a client that sends one and ends its side at
	// once is told of by the poller but once, and would be heard at the next deadline only.
	Known bool
	// Idler is who is told of its rests; nil for nobody.
	Idler Idler

	raw     syscall.RawConn
	fd      int
	polling bool // Read is called within Poll
	empty   bool // there is nothing to read until the poller says so
}

// An Idler is told when nothing is expected of a connection for now, so that it can make
// room for another one.
type Idler interface {
	// Park begins such a time; end is called when the connection shall end, and must not wait.
	Park(end func())
	// Unpark ends it; false if the connection was told to end.
	Unpark() bool
}

// New is a Conn on a socket; nil if it is none.
func New(c net.Conn) *Conn {
	of, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := of.SyscallConn()
	if err != nil {
		return nil
	}
	return &Conn{Conn: c, raw: raw}
}

// Raw is the socket itself.
func (c *Conn) Raw() syscall.RawConn { return c.raw }

// Polling says whether Poll is running, within which nobody may wait for bytes.
func (c *Conn) Polling() bool { return c.polling }

// CloseWrite ends the sending side.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// Poll calls ready, and again each time that something has come, until it returns true.
// Within it Read never waits: when it returns Nothing, ready is to return false. The poller
// is not told anew between two calls, so that what comes meanwhile is not missed, and need
// not be looked for.
func (c *Conn) Poll(ready func() bool) error {
	return c.raw.Read(func(fd uintptr) bool {
		c.fd, c.polling, c.empty = int(fd), true, false
		defer func() { c.polling = false }()
		return ready()
	})
}

// Read is of net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	if !c.polling {
		return c.Conn.Read(b)
	}
	if c.empty {
		return 0, Nothing
	}
	n, err := Read(c.fd, b)
	if err == Nothing || err == nil && n < len(b) && c.Known {
		c.empty = true
	}
	return n, err
}

// Read reads what is there now of a socket; Nothing if it is nothing.
func Read(fd int, b []byte) (int, error) {
	for {
		switch n, err := unix.Read(fd, b); {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, Nothing
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Write writes what a socket takes now.
func Write(fd int, b []byte) (n int, err error) {
	for n < len(b) {
		switch m, err := unix.Write(fd, b[n:]); {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return n, nil
		case err != nil:
			return n, os.NewSyscallError("write", err)
		default:
			n += m
		}
	}
	return n, nil
}
