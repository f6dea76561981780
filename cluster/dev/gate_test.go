package dev

import (
	"context"
	"io"
	"net"
	"testing"
	"time"
)

// speaker answers each connection with its name.
func speaker(t *testing.T, name string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for name != "" {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := c.Read(make([]byte, 100)); err == nil {
					_, _ = io.WriteString(c, name)
				}
			}()
		}
	}()
	return l
}

// The gate leads to whoever answers: not to a server that is gone, and not to one
// that takes connections and says nothing. It ends with its connections.
func TestGate(t *testing.T) {
	mute, gone, well := speaker(t, ""), speaker(t, "gone"), speaker(t, "well")
	gone.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- pass(ctx, l, []string{mute.Addr().String(), gone.Addr().String(), well.Addr().String()})
	}()
	for range 4 { // each server's turn, and more
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "hello")
		b, err := io.ReadAll(c)
		if err != nil || string(b) != "well" {
			t.Errorf("%q, %v", b, err)
		}
		c.Close()
	}
	open, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
