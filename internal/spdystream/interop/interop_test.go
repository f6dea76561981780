// Package interop holds internal/spdystream beside the library that it stands for: each
// of them talks to the other on one connection. It reads and writes nothing else.
package interop

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	library "github.com/moby/spdystream"

	ours "knarr/internal/spdystream"
)

// stream is what both have of a stream.
type stream interface {
	io.ReadWriteCloser
	Headers() http.Header
	Identifier() uint32
	SendReply(http.Header, bool) error
	SendHeader(http.Header, bool) error
	ReceiveHeader() (http.Header, error)
	WaitTimeout(time.Duration) error
	Reset() error
	Refuse() error
}

type connection struct {
	create func(h http.Header) (stream, error)
	ping   func() (time.Duration, error)
	close  func() error
	closed <-chan bool
	idle   func(time.Duration)
}

type end func(c net.Conn, server bool, handler func(stream)) (connection, error)

func libraryEnd(c net.Conn, server bool, handler func(stream)) (connection, error) {
	s, err := library.NewConnection(c, server)
	if err != nil {
		return connection{}, err
	}
	go s.Serve(func(s *library.Stream) { handler(s) })
	return connection{
		func(h http.Header) (stream, error) { return s.CreateStream(h, nil, false) },
		s.Ping, s.Close, s.CloseChan(), s.SetIdleTimeout,
	}, nil
}

func ourEnd(c net.Conn, server bool, handler func(stream)) (connection, error) {
	s, err := ours.NewConnection(c, server)
	if err != nil {
		return connection{}, err
	}
	go s.Serve(func(s *ours.Stream) { handler(s) })
	return connection{
		func(h http.Header) (stream, error) { return s.CreateStream(h, nil, false) },
		s.Ping, s.Close, s.CloseChan(), s.SetIdleTimeout,
	}, nil
}

var ends = map[string]end{"the library": libraryEnd, "ours": ourEnd}

// each runs f with each of the two as server and as client.
func each(t *testing.T, handler func(stream), f func(t *testing.T, server, client connection)) {
	for name, serverEnd := range ends {
		for other, clientEnd := range ends {
			t.Run(name+" serves "+other, func(t *testing.T) {
				server, client := connected(t, serverEnd, clientEnd, handler)
				f(t, server, client)
			})
		}
	}
}

func connected(t testing.TB, serverEnd, clientEnd end, handler func(stream)) (server, client connection) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dialled.Close(); _ = accepted.Close() })
	if server, err = serverEnd(accepted, true, handler); err != nil {
		t.Fatal(err)
	}
	if client, err = clientEnd(dialled, false, func(s stream) { _ = s.SendReply(http.Header{}, false) }); err != nil {
		t.Fatal(err)
	}
	return server, client
}

func echo(s stream) {
	if s.Headers().Get("refused") != "" {
		_ = s.Refuse()
		return
	}
	_ = s.SendReply(http.Header{"Reply": {"yes"}}, false)
	go func() {
		_, _ = io.Copy(s, s)
		_ = s.Close()
	}()
	go func() {
		for {
			h, err := s.ReceiveHeader()
			if err != nil || s.SendHeader(h, false) != nil {
				return
			}
		}
	}()
}

func opened(t testing.TB, c connection, h http.Header) stream {
	t.Helper()
	s, err := c.create(h)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WaitTimeout(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	return s
}

// As port-forward: many streams, each with headers and data of its own, half closed by
// the client.
func TestStreams(t *testing.T) {
	each(t, echo, func(t *testing.T, _, client connection) {
		var wg sync.WaitGroup
		for i := range 100 {
			h := http.Header{"streamType": {"data"}, "port": {fmt.Sprint(i)}, "requestID": {fmt.Sprint(i * 7)}}
			wg.Go(func() {
				s := opened(t, client, h)
				want := make([]byte, rand.IntN(300<<10))
				for j := range want {
					want[j] = byte(i * j)
				}
				go func() {
					for rest := want; len(rest) > 0; {
						n, err := s.Write(rest[:min(len(rest), 1+rand.IntN(100<<10))])
						if err != nil {
							t.Error(err)
							return
						}
						rest = rest[n:]
					}
					_ = s.Close()
				}()
				if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d of %d bytes, %v", len(got), len(want), err)
				}
			})
		}
		wg.Wait()
	})
}

func TestHeaders(t *testing.T) {
	each(t, echo, func(t *testing.T, _, client connection) {
		s := opened(t, client, http.Header{})
		for i := range 50 {
			want := http.Header{"Name": {fmt.Sprint(i), "", "x"}, "Content-Type": {string(make([]byte, 0)) + "text/plain"}}
			for j := range i {
				want.Set(fmt.Sprintf("Other-%d", j), string(bytes.Repeat([]byte{'a' + byte(i)}, 500)))
			}
			if err := s.SendHeader(want, false); err != nil {
				t.Fatal(err)
			}
			got, err := s.ReceiveHeader()
			if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%v, want %v, %v", got, want, err)
			}
		}
	})
}

func TestRefusal(t *testing.T) {
	each(t, echo, func(t *testing.T, _, client connection) {
		s, err := client.create(http.Header{"Refused": {"yes"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.WaitTimeout(10 * time.Second); err == nil || err.Error() != library.ErrReset.Error() {
			t.Fatal(err)
		}
		opened(t, client, nil)
	})
}

func TestPing(t *testing.T) {
	each(t, echo, func(t *testing.T, server, client connection) {
		for range 10 {
			for _, c := range []connection{server, client} {
				if _, err := c.ping(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// A reset of the client's ends what the server reads; the server's streams go the other way.
func TestReset(t *testing.T) {
	read := make(chan error, 1)
	handler := func(s stream) {
		_ = s.SendReply(http.Header{}, false)
		go func() { _, err := io.Copy(io.Discard, s); read <- err }()
	}
	each(t, handler, func(t *testing.T, server, client connection) {
		s := opened(t, client, nil)
		_, _ = s.Write([]byte("x"))
		_ = s.Reset()
		if err := <-read; err != nil {
			t.Error(err)
		}
		if back := opened(t, server, nil); back.Identifier() != 2 {
			t.Error(back.Identifier())
		}
	})
}

// Closing either end ends both, and what the other end wrote before is read.
func TestClose(t *testing.T) {
	handler := func(s stream) {
		_ = s.SendReply(http.Header{}, false)
		_, _ = s.Write(bytes.Repeat([]byte("x"), 100<<10))
		_ = s.Close()
	}
	each(t, handler, func(t *testing.T, server, client connection) {
		s := opened(t, client, nil)
		time.Sleep(20 * time.Millisecond)
		_ = server.close()
		if got, err := io.ReadAll(s); len(got) != 100<<10 || err != nil {
			t.Error(len(got), err)
		}
		_ = s.Close()
		_ = client.close()
		<-client.closed
		<-server.closed
	})
}

func TestIdleTimeout(t *testing.T) {
	each(t, echo, func(t *testing.T, server, client connection) {
		s := opened(t, client, nil)
		server.idle(50 * time.Millisecond)
		if got, err := io.ReadAll(s); len(got) != 0 || err != nil {
			t.Error(got, err)
		}
		<-server.closed
		<-client.closed
	})
}

// BenchmarkConnection measures what a connection holds on which a stream is open, of
// both its ends.
func BenchmarkConnection(b *testing.B) {
	for name, e := range ends {
		b.Run(name, func(b *testing.B) {
			before := held()
			for range b.N {
				_, client := connected(b, e, e, echo)
				opened(b, client, http.Header{"streamType": {"data"}, "port": {"80"}})
			}
			b.ReportMetric(float64(held()-before)/float64(b.N), "B/held")
			b.ReportMetric(float64(runtime.NumGoroutine())/float64(b.N), "goroutines")
		})
	}
}

func held() int {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int(s.HeapAlloc + s.StackInuse)
}

// BenchmarkCopy measures data on one stream, in one direction.
func BenchmarkCopy(b *testing.B) {
	for name, e := range ends {
		b.Run(name, func(b *testing.B) {
			handler := func(s stream) {
				_ = s.SendReply(http.Header{}, false)
				go func() {
					_, _ = io.Copy(io.Discard, s)
					_ = s.Close()
				}()
			}
			_, client := connected(b, e, e, handler)
			s := opened(b, client, nil)
			piece := make([]byte, 32<<10)
			b.SetBytes(int64(len(piece)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Write(piece); err != nil {
					b.Fatal(err)
				}
			}
			_ = s.Close()
			_, _ = io.ReadAll(s)
		})
	}
}
