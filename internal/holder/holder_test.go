package holder_test

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"knarr/internal/holder"
)

// What arrives while nobody listens is there for the next.
func TestSocketsOutliveTheirServer(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "holder")
	if out, err := exec.Command("go", "build", "-o", program, "./program").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	socket := filepath.Join(dir, "sock")
	if _, err := holder.Connect(socket); err == nil {
		t.Fatal("connected to a holder that is not there")
	}
	first, err := holder.Start(program, socket)
	if err != nil {
		t.Fatal(err)
	}
	l, err := first.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := first.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []any{l, p} {
		if err := first.Keep(s); err != nil {
			t.Fatal(err)
		}
	}
	stream, packets := l.Addr().String(), p.LocalAddr().String()
	l.Close()
	p.Close()

	c, err := net.DialTimeout("tcp", stream, time.Second)
	if err != nil {
		t.Fatalf("connect while nobody listens: %v", err)
	}
	defer c.Close()
	u, err := net.Dial("udp", packets)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if _, err := io.WriteString(u, "datagram"); err != nil {
		t.Fatal(err)
	}

	second, err := holder.Connect(socket)
	if err != nil {
		t.Fatal(err)
	}
	if l, err = second.Listen("tcp", stream); err != nil {
		t.Fatal(err)
	}
	if p, err = second.ListenPacket("udp", packets); err != nil {
		t.Fatal(err)
	}
	got, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	got.Close()
	buf := make([]byte, 64)
	_ = p.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, _, err := p.ReadFrom(buf); err != nil || string(buf[:n]) != "datagram" {
		t.Errorf("datagram: %q, %v", buf[:n], err)
	}
	l.Close()
	p.Close()
	if err := second.End(); err != nil {
		t.Fatal(err)
	}
	var gone error
	for range 100 {
		if _, gone = net.DialTimeout("tcp", stream, time.Second); gone != nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if gone == nil {
		t.Error("the socket is still held after the end")
	}
}

// A socket for datagrams at all addresses is found again by the address that was asked for.
func TestDatagramsAtAllAddresses(t *testing.T) {
	c := started(t)
	p, err := c.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Keep(p); err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf(":%d", p.LocalAddr().(*net.UDPAddr).Port)
	p.Close()
	u, err := net.Dial("udp", "127.0.0.1"+at)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if _, err := io.WriteString(u, "datagram"); err != nil {
		t.Fatal(err)
	}
	if p, err = c.ListenPacket("udp", at); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	buf := make([]byte, 64)
	_ = p.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, _, err := p.ReadFrom(buf); err != nil || string(buf[:n]) != "datagram" {
		t.Errorf("datagram: %q, %v", buf[:n], err)
	}
}

// What is dropped is free for others once it is closed.
func TestDrop(t *testing.T) {
	c := started(t)
	l, err := c.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	if err := c.Keep(l); err != nil {
		t.Fatal(err)
	}
	if err := c.Drop(l); err != nil {
		t.Fatal(err)
	}
	l.Close()
	again, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatalf("after it was dropped: %v", err)
	}
	again.Close()
}

func TestNothingHeld(t *testing.T) {
	var none *holder.Client
	l, err := none.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if none.Keep(l) != nil || none.Drop(l) != nil || none.End() != nil {
		t.Error("a nil client refuses")
	}
}

// started is a client of a holder that ends with the test.
func started(t *testing.T) *holder.Client {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "holder")
	if out, err := exec.Command("go", "build", "-o", program, "./program").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c, err := holder.Start(program, filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.End(); err != nil {
			t.Error(err)
		}
	})
	return c
}
