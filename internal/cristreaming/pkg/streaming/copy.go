package streaming

import (
	"io"
	"net"
	"sync"
	"syscall"
)

// buffers are for what is being copied. A connection on which nothing moves has none.
var buffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// fromConn copies what comes by a connection.
func fromConn(to io.Writer, from net.Conn) error {
	c, ok := from.(syscall.Conn)
	if !ok {
		_, err := io.Copy(to, from)
		return err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var buffer *[]byte
		var n int
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			buffer = buffers.Get().(*[]byte)
			for {
				if n, failed = syscall.Read(int(fd), *buffer); failed != syscall.EINTR {
					break
				}
			}
			if failed == syscall.EAGAIN {
				buffers.Put(buffer)
				buffer = nil
				return false
			}
			return true
		})
		if err == nil && failed != nil {
			err = &net.OpError{Op: "read", Net: "tcp", Source: from.LocalAddr(), Addr: from.RemoteAddr(), Err: failed}
		}
		if n > 0 {
			_, err = to.Write((*buffer)[:n])
		}
		if buffer != nil {
			buffers.Put(buffer)
		}
		if err != nil || n <= 0 {
			return err
		}
	}
}

// fromStream copies what comes by a stream, which holds it itself until it is read.
func fromStream(to io.Writer, from io.Reader) error {
	buffer := make([]byte, 4<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}
