package headerlimit

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
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
