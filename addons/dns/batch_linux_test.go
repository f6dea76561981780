package dns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestBatch: many queries are read together and each answer reaches its client, by both
// families, whatever else comes: nothing at all, or more than there is room for.
func TestBatch(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), 0)))
			if err != nil {
				t.Fatal(err)
			}
			b, err := newBatch(socket)
			if err != nil {
				t.Fatal(err)
			}
			var clients []*net.UDPConn
			for i := range batchSize + 2 {
				c, err := net.DialUDP("udp", nil, socket.LocalAddr().(*net.UDPAddr))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				clients = append(clients, c)
				query := fmt.Sprint("query ", i)
				switch i {
				case 1:
					query = ""
				case 2:
					query = strings.Repeat("x", maxMessage+1)
				}
				if _, err := c.Write([]byte(query)); err != nil {
					t.Fatal(err)
				}
			}
			for first := 0; first < len(clients); {
				got, err := b.read()
				if err != nil {
					t.Fatal(err)
				}
				if want := min(batchSize, len(clients)-first); len(got) != want {
					t.Errorf("%d queries at once, want %d", len(got), want)
				}
				for i := range got {
					d, n := &got[i], first+i
					if at := clients[n].LocalAddr().(*net.UDPAddr).AddrPort(); d.client() != at {
						t.Errorf("query %d is from %s, want %s", n, d.client(), at)
					}
					want := len(fmt.Sprint("query ", n))
					switch n {
					case 1:
						want = 0
					case 2:
						want = maxMessage
					}
					if d.n != want {
						t.Errorf("query %d has %d bytes, want %d", n, d.n, want)
					}
					if n != 3 { // this one gets no answer, and the next ones theirs
						d.answer = fmt.Append(d.room, "answer to ", n)
					}
				}
				if err := b.send(got); err != nil {
					t.Fatal(err)
				}
				first += len(got)
			}
			for i, c := range clients {
				if i == 3 {
					continue
				}
				if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
					t.Fatal(err)
				}
				answer := make([]byte, 100)
				n, err := c.Read(answer)
				if want := fmt.Sprint("answer to ", i); err != nil || string(answer[:n]) != want {
					t.Errorf("client %d is told %q, %v; want %q", i, answer[:n], err, want)
				}
			}
			if err := socket.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := b.read(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a closed socket gives %v", err)
			}
		})
	}
}
