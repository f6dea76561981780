package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"knarr/internal/run"
)

// served gives the address of a server that answers how long a request's body is, and whose
// users are known at /known.
func served(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{RequestTimeout: time.Minute, MaxStreams: 10, Stopping: func() {}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/known" {
			Known(r.Context())
		}
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	})}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	run.Go("test: serve", func() {
		ended <- s.Serve(ctx, l, &tls.Config{Certificates: []tls.Certificate{certificate()}, NextProtos: []string{"h2", "http/1.1"}})
	})
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func dialFrom(t *testing.T, from, to string, protocols ...string) *tls.Conn {
	t.Helper()
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	c, err := tls.DialWithDialer(d, "tcp", to, &tls.Config{InsecureSkipVerify: true, NextProtos: protocols})
	if err != nil {
		return nil
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// ask sends a request with a header of so many bytes and a body, and gives the answer.
func ask(c *tls.Conn, path string, header, body int) (string, error) {
	_, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nLong: %s\r\n\r\n%s", path, body, strings.Repeat("x", header), strings.Repeat("x", body))
	if err != nil {
		return "", err
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

// TestLongHeaders: a client that sends long headers of short lines, and does not end them,
// makes the server hold little of them, and keeps nobody else from sending one.
func TestLongHeaders(t *testing.T) {
	at := served(t)
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc >> 20)
	}
	lines := []byte("GET / HTTP/1.1\r\nHost: x\r\n")
	for i := 0; len(lines) < maxHeader-100; i++ {
		lines = fmt.Appendf(lines, "%x:\r\n", i)
	}
	before := heap()
	var hostile []*tls.Conn
	for range 40 {
		c := dialFrom(t, "127.0.0.1", at)
		if c == nil {
			t.Fatal("a connection is refused")
		}
		_, _ = c.Write(lines)
		hostile = append(hostile, c)
	}
	open := 0
	for _, c := range hostile {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			if e, ok := err.(net.Error); ok && e.Timeout() {
				open++
			}
		}
	}
	if most := headerPool / 2 / (maxHeader - 2*freeHeader); open > most || open == 0 {
		t.Errorf("%d headers are read, %d are the most", open, most)
	}
	if took := heap() - before; took > 120 {
		t.Errorf("%d MiB are held", took)
	}
	for range 3 { // one after the other, on one connection each
		c := dialFrom(t, "127.0.0.2", at)
		for range 3 {
			if got, err := ask(c, "/", maxHeader-10_000, 3<<20); got != fmt.Sprint(3<<20) {
				t.Errorf("another client: %q, %v", got, err)
			}
		}
	}
	for _, c := range hostile {
		c.Close()
	}
	for range 20 { // that they have ended is known a moment later
		c := dialFrom(t, "127.0.0.1", at)
		if got, err := ask(c, "/", maxHeader-10_000, 1); got == "1" {
			return
		} else if err != nil {
			time.Sleep(50 * time.Millisecond)
		}
	}
	t.Error("what was held of headers is not given back")
}

// TestStreamHeaders: HTTP/2 has a bound of its own for headers, and none for what else comes.
func TestStreamHeaders(t *testing.T) {
	at := served(t)
	c := dialFrom(t, "127.0.0.1", at, "h2")
	h2, err := (&http2.Transport{}).NewClientConn(c)
	if err != nil {
		t.Fatal(err)
	}
	for header, want := range map[int]int{100: 200, 200 << 10: 200, 300 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		r, _ := http.NewRequest("POST", "https://x/", strings.NewReader(strings.Repeat("x", 3<<20)))
		r.Header.Set("Long", strings.Repeat("x", header))
		res, err := h2.RoundTrip(r)
		if err != nil { // the client knows the bound
			if want == 200 {
				t.Errorf("%d bytes: %v", header, err)
			}
			continue
		}
		if b, _ := io.ReadAll(res.Body); res.StatusCode != want || want == 200 && string(b) != fmt.Sprint(3<<20) {
			t.Errorf("%d bytes: %s, %q", header, res.Status, b)
		}
		res.Body.Close()
	}
}

// TestUnauthenticated: a client has so many connections on which nobody is known, and another one
// gets in all the same; those of known users do not count.
func TestUnauthenticated(t *testing.T) {
	at := served(t)
	for i := range 20 {
		if got, err := ask(dialFrom(t, "127.0.0.1", at), "/known", 10, 0); got != "0" {
			t.Fatalf("known %d: %q, %v", i, got, err)
		}
	}
	in := 0
	for range maxUnauthenticated/2 + 5 {
		if c := dialFrom(t, "127.0.0.1", at); c != nil {
			if got, _ := ask(c, "/", 10, 0); got == "0" {
				in++
			}
		}
	}
	if in != maxUnauthenticated/2 {
		t.Errorf("%d connections, want %d", in, maxUnauthenticated/2)
	}
	if got, err := ask(dialFrom(t, "127.0.0.2", at), "/", 10, 0); got != "0" {
		t.Errorf("another client: %q, %v", got, err)
	}
}
