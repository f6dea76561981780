package headerlimit

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"knarr/internal/connlimit"
)

// TestNothingStays: what connections held counts no longer when they have ended, when the user
// of a request is known, and when the next request may come.
func TestNothingStays(t *testing.T) {
	inside := make(chan int, 10)
	var bound *listener
	held := func() (n int) {
		bound.pool.mu.Lock()
		defer bound.pool.mu.Unlock()
		if len(bound.pool.held) == 0 && bound.pool.all != 0 {
			t.Errorf("%d bytes are held by nobody", bound.pool.all)
		}
		return bound.pool.all
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		inside <- held()
		if r.URL.Path == "/known" {
			Known(r)
		}
		inside <- held()
	}))
	bound = Bound(s.Config, s.Listener, 100, func(why string, client netip.Addr) { t.Error(why, client) }).(*listener)
	s.Listener = bound
	s.Start()
	defer s.Close()
	ended := func(what string) {
		t.Helper()
		for range 500 {
			if held() == 0 {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%s: %d bytes are held", what, held())
	}
	const long = 100_000
	ask := func(path string) (before, after int) {
		t.Helper()
		r, err := http.NewRequest("GET", s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Long", strings.Repeat("x", long))
		res, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return <-inside, <-inside
	}
	for range 3 { // on one connection
		if before, after := ask("/"); before < long-2*FreeHeader || after != before {
			t.Errorf("nobody in particular: %d, %d bytes are held", before, after)
		}
		ended("between requests")
		if before, after := ask("/known"); before < long-2*FreeHeader || after != 0 {
			t.Errorf("a known user: %d, %d bytes are held", before, after)
		}
	}
	c, err := net.Dial("tcp", bound.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\nLong: " + strings.Repeat("x", long))); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if held() > long/2 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if held() <= long/2 {
		t.Error("a header that does not end is not counted")
	}
	c.Close()
	ended("closed")
}

// TestClients: where too much is held, the connections go of the client that has most of it,
// the largest first, and a client with little gets what it needs.
func TestClients(t *testing.T) {
	var closed []string
	p := &pool{held: map[*Conn]int{}, of: map[netip.Addr]int{}, closed: func(client netip.Addr) { closed = append(closed, client.String()) }}
	conn := func(client string) *Conn {
		here, there := net.Pipe()
		t.Cleanup(func() { here.Close(); there.Close() })
		ln := connlimit.Listen(&oneConn{c: here}, 1, nil)
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return &Conn{Conn: here, counted: c.(*connlimit.Conn), pool: p, client: netip.MustParseAddr(client)}
	}
	const each = 4 << 10
	many := make([]*Conn, HeaderPool/each)
	for i := range many {
		if many[i] = conn("10.0.0.1"); !p.take(many[i], each) {
			t.Fatal(i)
		}
	}
	newcomer := conn("10.0.0.2")
	if !p.take(newcomer, 25*each) || len(closed) != 25 || p.held[newcomer] != 25*each {
		t.Errorf("%d connections are closed for the newcomer, it holds %d bytes", len(closed), p.held[newcomer])
	}
	if more := conn("10.0.0.1"); p.take(more, 2*each) || p.held[more] != 0 {
		t.Error("the client with most gets more by its largest connection")
	}
	for _, at := range closed {
		if at != "10.0.0.1" {
			t.Errorf("one of %s is closed", at)
		}
	}
	many[0].off.Store(true)
	if before := p.all; !p.take(many[0], 1) || p.all != before {
		t.Error("what nobody gives back is taken")
	}
	for c := range p.held {
		p.give(c)
	}
	if p.all != 0 || len(p.of) != 0 {
		t.Errorf("%d bytes are left, of %v", p.all, p.of)
	}
}

// oneConn listens for one connection.
type oneConn struct {
	net.Listener
	c net.Conn
}

func (l *oneConn) Accept() (net.Conn, error) { return l.c, nil }

// TestAnswersTakeTime: an answer to somebody unknown ends after its time, as where a window stays
// shut; one to a known user goes on, such as a log that is followed.
func TestAnswersTakeTime(t *testing.T) {
	before := answerTime
	answerTime = 300 * time.Millisecond
	defer func() { answerTime = before }()
	for _, h2 := range []bool{false, true} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/known" {
				Known(r)
			}
			for range 10 {
				_, _ = w.Write([]byte("x"))
				_ = http.NewResponseController(w).Flush()
				time.Sleep(100 * time.Millisecond)
			}
		}))
		s.EnableHTTP2 = h2
		s.Listener = Bound(s.Config, s.Listener, 100, func(why string, client netip.Addr) { t.Error(why, client) })
		s.StartTLS()
		for _, path := range []string{"/known", "/", "/known"} {
			res, err := s.Client().Get(s.URL + path)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if known := path == "/known"; known && (err != nil || len(b) != 10) || !known && (err == nil || len(b) == 10) || (res.ProtoMajor == 2) != h2 {
				t.Errorf("%s by %s: %d bytes, %v", path, res.Proto, len(b), err)
			}
		}
		s.Close()
	}
}
