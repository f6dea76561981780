package server

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"knarr/internal/wsframes"
)

// statusTime is how long a client may take to read what a command has said when it has
// ended. The library that writes its status waits ten seconds for that, and then closes
// the connection: who reads slowly, through a pager or a thin line, would lose the end of
// the output. It is longer than kubectl itself waits, which is a minute.
const statusTime = 2 * time.Minute

// slowReader is an answer to a client of WebSocket that has so long.
type slowReader struct{ http.ResponseWriter }

func (r slowReader) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	conn := &slowReaderConn{Conn: c, frames: wsframes.Of(c, rw)}
	conn.close = sync.OnceValue(conn.linger)
	return conn, rw, nil
}

type slowReaderConn struct {
	net.Conn
	frames io.Reader
	close  func() error
}

func (c *slowReaderConn) Read(p []byte) (int, error) { return c.frames.Read(p) }

// SetWriteDeadline makes no deadline earlier than statusTime from now.
func (c *slowReaderConn) SetWriteDeadline(t time.Time) error {
	if least := time.Now().Add(statusTime); !t.IsZero() && t.Before(least) {
		t = least
	}
	return c.Conn.SetWriteDeadline(t)
}

func (c *slowReaderConn) Close() error { return c.close() }

// linger closes the connection when the client has. A socket that is closed before
// answers what comes, such as a client's ping, with a reset, and what the client has not
// read by then is gone.
func (c *slowReaderConn) linger() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // the client knows the end by what was said, too
		if err := c.Conn.SetReadDeadline(time.Now().Add(statusTime)); err == nil {
			_, _ = io.Copy(io.Discard, c.Conn)
		}
	}
	return c.Conn.Close()
}
