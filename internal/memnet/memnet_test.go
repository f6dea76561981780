package memnet

import (
	"context"
	"io"
	"net"
	"testing"

	"golang.org/x/net/nettest"
)

func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, b := newPipe()
		return a, b, func() { a.Close(); b.Close() }, nil
	})
}

func TestIdentity(t *testing.T) {
	l := Listen()
	go func() {
		c, err := l.DialAs(context.Background(), "system:node:a")
		if err == nil {
			io.WriteString(c, "hello")
			c.Close()
		}
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if got := Identity(c); got != "system:node:a" {
		t.Errorf("identity %v", got)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "hello" {
		t.Errorf("read %q, %v", b, err)
	}
	l.Close()
	if _, err := l.Dial(context.Background(), "", ""); err != net.ErrClosed {
		t.Errorf("dial after close: %v", err)
	}
}
