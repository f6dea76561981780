package connlimit

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestClient(t *testing.T) {
	for a, b := range map[string]string{"2001:db8::1": "2001:db8::ffff:1", "::ffff:10.0.0.1": "10.0.0.1", "fe80::1%eth0": "fe80::2"} {
		if x, y := Client(netip.MustParseAddr(a)), Client(netip.MustParseAddr(b)); x != y {
			t.Errorf("%s counts for %s, %s for %s", a, x, b, y)
		}
	}
	if Client(netip.MustParseAddr("10.0.0.1")) == Client(netip.MustParseAddr("10.0.0.2")) {
		t.Error("two addresses are one")
	}
}

// TestListen: where there are too many, the oldest of the client that has most goes, and
// those that have left stay.
func TestListen(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var closed []string
	ln := Listen(tcp, 4, func(client netip.Addr) { closed = append(closed, client.String()) })
	defer ln.Close()
	accept := func(from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
		c, err := d.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		got, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { got.Close() })
		return got
	}
	open := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		e, ok := err.(net.Error)
		return ok && e.Timeout()
	}
	known := accept("127.0.0.1")
	known.(*Conn).Leave()
	known.(*Conn).Leave()
	var all []net.Conn
	for _, from := range []string{"127.0.0.2", "127.0.0.1", "127.0.0.1", "127.0.0.3", "127.0.0.3", "127.0.0.4"} {
		all = append(all, accept(from))
	}
	// The fifth has the first of .1 closed, the sixth the first of .3.
	for i, want := range []bool{true, false, true, false, true, true} {
		if got := open(all[i]); got != want {
			t.Errorf("connection %d is open: %t", i, got)
		}
	}
	if !open(known) {
		t.Error("one that had left was closed")
	}
	if got := strings.Join(closed, " "); got != "127.0.0.1 127.0.0.3" {
		t.Errorf("closed: %s", got)
	}
	all[0].Close()
	accept("127.0.0.5")
	if len(closed) != 2 {
		t.Errorf("there was room, and %v were closed", closed)
	}
}
