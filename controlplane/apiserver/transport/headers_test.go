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

	"knarr/internal/headerlimit"
	"knarr/internal/run"
)

// served gives the address of a server that answers how long a request's body is, and whose
// users are known at /known. At /refused it does not look at the body.
func served(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{RequestTimeout: time.Minute, MaxStreams: 10, Stopping: func() {}, unauthenticated: 200, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/known":
			headerlimit.Known(r)
		case "/refused":
			http.Error(w, "refused", http.StatusUnauthorized)
			return
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

func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc >> 20)
}

// TestLongHeaders: clients that send long headers of short lines, and do not end them, or never
// send the body, make the server hold little of them, and keep nobody else from sending one.
func TestLongHeaders(t *testing.T) {
	for name, end := range map[string]string{"no end": "", "no body": "Content-Length: 1\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			at := served(t)
			header := []byte("GET /refused HTTP/1.1\r\nHost: x\r\n")
			lines := 1 << 20
			if end != "" {
				lines = headerlimit.MaxLines - 10 // or it is refused at once
			}
			for i := 0; len(header) < maxHeader-20_000 && i < lines; i++ {
				header = fmt.Appendf(header, "%x:\r\n", i)
			}
			header = fmt.Appendf(header, "Long: %s\r\n%s", strings.Repeat("x", max(0, maxHeader-10_000-len(header))), end)
			before := heap()
			var hostile []*tls.Conn
			for i := range 40 {
				c := dialFrom(t, fmt.Sprintf("127.0.1.%d", i+1), at)
				if c == nil {
					t.Fatal("a connection is refused")
				}
				_, _ = c.Write(header)
				hostile = append(hostile, c)
			}
			const most = headerlimit.HeaderPool/(maxHeader-2*headerlimit.FreeHeader-20_000) + 1
			var open, took int
			within := 20 * time.Second
			if end != "" {
				within = 7 * time.Second // before the time for a body is over
			}
			for until := time.Now().Add(within); time.Now().Before(until); { // what comes is read meanwhile
				open = 0
				for _, c := range hostile {
					_ = c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
					if _, err := c.Read(make([]byte, 1)); err != nil {
						if e, ok := err.(net.Error); ok && e.Timeout() {
							open++
						}
					}
				}
				if took = heap() - before; open <= most && took <= 200 {
					break
				}
			}
			if open > most || open == 0 {
				t.Errorf("%d headers are read, %d are the most", open, most)
			}
			if took > 200 {
				t.Errorf("%d MiB are held", took)
			}
			c := dialFrom(t, "127.0.0.2", at)
			for range 3 { // one after the other on one connection
				if got, err := ask(c, "/known", 100_000, 3<<20); got != fmt.Sprint(3<<20) {
					t.Errorf("another client: %q, %v", got, err)
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
		})
	}
}

// TestManyLines: a header has a bound on its lines, whatever they are, since it is held as long
// as its request takes.
func TestManyLines(t *testing.T) {
	at := served(t)
	for lines, want := range map[int]int{headerlimit.MaxLines - 10: 200, headerlimit.MaxLines + 1: http.StatusRequestHeaderFieldsTooLarge} {
		for _, line := range []string{"same: x\r\n", "x%d: x\r\n"} {
			var b strings.Builder
			b.WriteString("GET / HTTP/1.1\r\nHost: x\r\n")
			for i := range lines {
				b.WriteString(strings.ReplaceAll(line, "%d", fmt.Sprint(i)))
			}
			c := dialFrom(t, "127.0.0.1", at)
			_, _ = io.WriteString(c, b.String()+"\r\n")
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || res.StatusCode != want {
				t.Errorf("%d lines: %v, %v", lines, res, err)
			}
		}
	}
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

// TestUnauthenticated: of connections on which nobody was authenticated there are so many, the
// newest; those of known users stay.
func TestUnauthenticated(t *testing.T) {
	at := served(t)
	known, idle := dialFrom(t, "127.0.0.1", at), dialFrom(t, "127.0.0.1", at)
	if got, err := ask(known, "/known", 10, 0); got != "0" {
		t.Fatalf("known: %q, %v", got, err)
	}
	other := dialFrom(t, "127.0.0.2", at)
	for i := range 220 {
		c := dialFrom(t, "127.0.0.1", at)
		if got, err := ask(c, "/", 10, 0); got != "0" {
			t.Fatalf("connection %d: %q, %v", i, got, err)
		}
	}
	for name, c := range map[string]*tls.Conn{"known": known, "another client": other} {
		if got, err := ask(c, "/", 10, 0); got != "0" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, err := ask(idle, "/", 10, 0); err == nil {
		t.Errorf("the oldest one goes on: %q", got)
	}
}
