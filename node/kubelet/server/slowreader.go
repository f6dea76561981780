package server

import (
	"bufio"
	"net"
	"net/http"
	"time"
)

// statusTime is how long a client may take to read what a command has said when it has
// ended. The library that writes its status waits ten seconds for that, and then closes
// the connection: who reads slowly, through a pager or a thin line, would lose the end of
// the output. It is longer than kubectl itself waits, which is a minute.
const statusTime = 2 * time.Minute

// slowReader is an answer to a client that has so long.
type slowReader struct{ http.ResponseWriter }

func (p slowReader) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(p.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return slowReaderConn{c}, rw, nil
}

type slowReaderConn struct{ net.Conn }

// SetWriteDeadline makes no deadline earlier than statusTime from now.
func (c slowReaderConn) SetWriteDeadline(t time.Time) error {
	if least := time.Now().Add(statusTime); !t.IsZero() && t.Before(least) {
		t = least
	}
	return c.Conn.SetWriteDeadline(t)
}
