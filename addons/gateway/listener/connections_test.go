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

	"golang.org/x/net/http2"
)

func TestConnections(t *testing.T) {
	c := newConnections(4)
	a, b, d := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	var all []*place
	for i, step := range []struct {
		client netip.Addr
		want   bool
	}{{a, true}, {a, true}, {a, false}, {b, true}, {b, true}, {d, false}} {
		got := c.enter(step.client)
		if (got != nil) != step.want {
			t.Errorf("%d: %v", i, got)
		}
		if got != nil {
			all = append(all, got)
		}
	}
	all[0].share()
	all[0].leave()
	if c.enter(d) != nil {
		t.Error("a connection that another goroutine serves is counted out")
	}
	all[0].leave()
	if all = append(all[1:], c.enter(d)); all[3] == nil || c.enter(d) != nil {
		t.Error("the place that became free is not one")
	}
	// Those that are idle make room, the one first that has been so the longest; of a client
	// that has all it may, its own.
	ended := ""
	park := func(i int, name string) { all[i].Park(func() { ended += name }) }
	park(2, "2") // b's
	park(3, "3") // d's
	park(1, "1") // b's
	if !all[2].Unpark() {
		t.Error("a connection that was not told to end cannot go on")
	}
	all = append(all, c.enter(d)) // d's own would do, but there is room for none
	if ended != "3" || all[3].Unpark() {
		t.Errorf("ended: %q", ended)
	}
	all = append(all, c.enter(b))
	if ended != "31" || all[1].Unpark() || c.enter(a) != nil {
		t.Errorf("ended: %q", ended)
	}
	if c.total != 4 || c.by[b].total != 2 {
		t.Errorf("%d are counted, %d of b", c.total, c.by[b].total)
	}
	for _, of := range all {
		of.leave()
	}
	if c.total != 0 || len(c.by) != 0 || c.idle.Len() != 0 {
		t.Errorf("%d are left, of %v, %d idle", c.total, c.by, c.idle.Len())
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

// few makes a port that takes four connections, two of one client.
func few(t *testing.T) (p *Port, dial func(sent string) (net.Conn, *bufio.Reader)) {
	before := opened
	opened = newConnections(4)
	t.Cleanup(func() { opened = before })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p = Open(l, &Content{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})})
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		p.Close(ctx)
	})
	return p, func(sent string) (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(conn, sent)
		return conn, bufio.NewReader(conn)
	}
}

const whole = "GET / HTTP/1.1\r\nHost: h\r\n\r\n"

func answered(r *bufio.Reader) bool {
	answer, err := http.ReadResponse(r, nil)
	if err == nil {
		_ = answer.Body.Close()
	}
	return err == nil
}

// until repeats an attempt until it succeeds.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// TestTooManyConnections: a port closes connections beyond what one client may have, while
// requests are under way on those, and takes others once some have ended.
func TestTooManyConnections(t *testing.T) {
	_, dial := few(t)
	first, firstAnswer := dial(whole[:5])
	dial(whole[:5])
	if _, third := dial(whole); answered(third) {
		t.Error("a third connection is served")
	}
	_, _ = io.WriteString(first, whole[5:])
	if !answered(firstAnswer) {
		t.Error("the first connection is not served")
	}
	_ = first.Close()
	until(t, "no connection is taken after one has ended", func() bool {
		fourth, r := dial(whole)
		defer fourth.Close()
		return answered(r)
	})
}

// TestIdleConnectionsMakeRoom: where there are too many connections, one on which nothing is
// asked ends, in each version of HTTP.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	for name, sent := range map[string]string{"HTTP/1.1": whole, "HTTP/2": http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"} {
		t.Run(name, func(t *testing.T) {
			_, dial := few(t)
			ended := make(chan error, 2)
			for range 2 {
				_, r := dial(sent)
				if _, err := r.Peek(9); err != nil {
					t.Fatal("a connection is not served: ", err)
				}
				go func() {
					_, err := io.Copy(io.Discard, r)
					ended <- err
				}()
			}
			until(t, "no room is made", func() bool {
				conn, r := dial(whole)
				defer conn.Close()
				return answered(r)
			})
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
