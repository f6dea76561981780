package failover

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

func TestMerge(t *testing.T) {
	for _, c := range []struct{ before, now, want []string }{
		{nil, []string{"a", "b"}, []string{"a", "b"}},
		{[]string{"b", "a"}, []string{"a", "b", "c"}, []string{"b", "a", "c"}},
		{[]string{"b", "a"}, []string{"c", "a", "a"}, []string{"a", "c"}},
		{[]string{"a"}, nil, nil},
	} {
		if got := merge(c.before, c.now); !slices.Equal(got, c.want) {
			t.Errorf("%v, %v: %v, want %v", c.before, c.now, got, c.want)
		}
	}
}

// listen answers every connection with its name, unless it is mute.
func listen(t *testing.T, name string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if name == "" {
		return l
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 1)
				if _, err := c.Read(b); err == nil {
					_, _ = io.WriteString(c, name)
				}
			}()
		}
	}()
	return l
}

func ask(ctx context.Context, d *Dialer) (string, error) {
	c, err := d.DialContext(ctx, "tcp", "ignored:1")
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := c.Write([]byte("?")); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	if len(b) > 0 {
		err = nil
	}
	return string(b), err
}

func TestDial(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	a, b := listen(t, "a"), listen(t, "b")
	d := New(a.Addr().String(), b.Addr().String())
	if got, err := ask(ctx, d); err != nil || got != "a" {
		t.Fatalf("%q, %v", got, err)
	}
	a.Close() // refuses
	if got, err := ask(ctx, d); err != nil || got != "b" {
		t.Fatalf("%q, %v", got, err)
	}
	if got := d.Servers(); got[0] != b.Addr().String() {
		t.Errorf("%v", got)
	}
	d.Set([]string{b.Addr().String()})
	b.Close()
	if got, err := ask(ctx, d); err == nil {
		t.Errorf("nobody is there, and %q answers", got)
	}
}

// One whose socket takes connections, and which never answers, is left.
func TestUnansweringServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	unanswering, b := listen(t, ""), listen(t, "b")
	d := New(unanswering.Addr().String(), b.Addr().String())
	if got, err := ask(ctx, d); err == nil {
		t.Fatalf("the mute one says %q", got)
	}
	if got, err := ask(ctx, d); err != nil || got != "b" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestLeave: a server that answered once and then keeps silent is left for another, on
// whichever connection; the only one is not.
func TestLeave(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	a, b := listen(t, "a"), listen(t, "b")
	d := New(a.Addr().String())
	first, err := d.DialContext(ctx, "tcp", "ignored:1")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	d.Leave()
	if _, err := first.Write([]byte("?")); err != nil {
		t.Error("the only server is left:", err)
	}
	d.Set([]string{a.Addr().String(), b.Addr().String()})
	second, err := d.DialContext(ctx, "tcp", "ignored:1")
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	d.Leave()
	for _, c := range []net.Conn{first, second} {
		if _, err := c.Write([]byte("?")); !errors.Is(err, net.ErrClosed) {
			t.Error("a connection to the server that was left takes", err)
		}
	}
	if got, err := ask(ctx, d); err != nil || got != "b" {
		t.Errorf("%q, %v", got, err)
	}
	if len(d.open) != 0 {
		t.Errorf("%d connections are remembered", len(d.open))
	}
}
