package connlimit

import (
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestListen: of ten connections one client has five, another one gets in all the same, and
// who leaves makes room.
func TestListen(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var refused atomic.Int32
	ln := Listen(tcp, 10, func(client netip.Addr) {
		if !client.IsLoopback() {
			t.Errorf("%s is refused", client)
		}
		refused.Add(1)
	})
	defer ln.Close()
	accepted := make(chan net.Conn, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	// connect says whether the connection is there a moment later.
	connect := func(from string) bool {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
		c, err := d.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		closed := make(chan struct{})
		go func() { _, _ = c.Read(make([]byte, 1)); close(closed) }()
		select {
		case got := <-accepted:
			t.Cleanup(func() { got.Close() })
			accepted <- got
			// it stays in the channel for who wants to close it
			return true
		case <-closed:
			return false
		}
	}
	for i := range 5 {
		if !connect("127.0.0.1") {
			t.Fatalf("connection %d is refused", i)
		}
		<-accepted
	}
	if connect("127.0.0.1") {
		t.Error("a client has more than half")
	}
	if !connect("127.0.0.2") {
		t.Fatal("another client is refused")
	}
	last := <-accepted
	for range 4 {
		if !connect("127.0.0.2") {
			t.Fatal("another client is refused")
		}
		<-accepted
	}
	if connect("127.0.0.3") {
		t.Error("there are more than ten")
	}
	last.Close()
	last.Close() // twice counts once
	if !connect("127.0.0.3") {
		t.Error("who left has made no room")
	}
	<-accepted
	if connect("127.0.0.4") {
		t.Error("closing twice made room for two")
	}
	ln.Close()
	<-ended
	if n := refused.Load(); n != 3 {
		t.Errorf("%d are known to be refused, of 3", n)
	}
}

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

// TestListenNewest: where there are too many, the oldest of the client that has most goes, and
// those that have left stay.
func TestListenNewest(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var refused []string
	ln := ListenNewest(tcp, 4, func(client netip.Addr) { refused = append(refused, client.String()) })
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
	if got := strings.Join(refused, " "); got != "127.0.0.1 127.0.0.3" {
		t.Errorf("refused: %s", got)
	}
	all[0].Close()
	accept("127.0.0.5")
	if len(refused) != 2 {
		t.Errorf("there was room, and %v were closed", refused)
	}
}
