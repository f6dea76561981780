package listener

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

func TestConnections(t *testing.T) {
	c := newConnections(4)
	a, b, d := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	for i, step := range []struct {
		client netip.Addr
		want   bool
	}{{a, true}, {a, true}, {a, false}, {b, true}, {b, true}, {d, false}} {
		if got := c.enter(step.client); got != step.want {
			t.Errorf("%d: %v", i, got)
		}
	}
	c.leave(a)
	if !c.enter(d) || c.enter(d) {
		t.Error("the place that became free is not one")
	}
	for _, of := range []netip.Addr{a, b, b, d} {
		c.leave(of)
	}
	if c.total != 0 || len(c.by) != 0 {
		t.Errorf("%d are left, of %v", c.total, c.by)
	}
	same := func(address string) netip.Addr {
		return clientOf(addressed{at: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))})
	}
	if same("[fd00::1]:1") != same("[fd00::2]:2") || same("[::ffff:10.0.0.1]:1") != a {
		t.Error("addresses of one client are counted apart")
	}
}

// An addressed is a connection of which only the address matters.
type addressed struct {
	net.Conn
	at net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.at }

// TestTooManyConnections: a port closes connections beyond what one client may have, and
// takes others once some have ended.
func TestTooManyConnections(t *testing.T) {
	before := opened
	opened = newConnections(4)
	defer func() { opened = before }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := Open(l, &Content{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})})
	ask := func() (net.Conn, bool) {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			_ = answer.Body.Close()
		}
		return conn, err == nil
	}
	first, ok := ask()
	second, also := ask()
	third, more := ask()
	if !ok || !also || more {
		t.Errorf("served: %v %v %v", ok, also, more)
	}
	_, _ = first.Close(), third.Close()
	for deadline := time.Now().Add(10 * time.Second); ; { // until the port sees that it ended
		fourth, ok := ask()
		_ = fourth.Close()
		if ok {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no connection is taken after one has ended")
		}
	}
	_ = second.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	p.Close(ctx)
}
