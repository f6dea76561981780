package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"knarr/addons/gateway/socket"
)

// A polled is a server whose connections are sockets, which are polled.
type polled struct {
	*Server
	l     net.Listener
	ended chan struct{} // gets one for each connection that has
}

func newPolled(t *testing.T, h http.HandlerFunc) *polled {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &polled{NewServer(h, nil), l, make(chan struct{}, 1000)}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				beneath := socket.New(c)
				s.Serve(beneath, beneath, nil)
				s.ended <- struct{}{}
			}()
		}
	}()
	return s
}

func (s *polled) dial(t *testing.T) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", s.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c.(*net.TCPConn)
}

// TestPolled: requests are served whatever parts they come in.
func TestPolled(t *testing.T) {
	get, last := "GET /a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /z HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
	post := "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\n"
	chunked := "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, c := range map[string]struct {
		parts []string // each after an answer, if it begins with an arrow
		want  string
	}{
		"one":              {[]string{last}, "GET /z"},
		"head in parts":    {[]string{get[:3], get[3:17], get[17:] + last}, "GET /a, GET /z"},
		"at once":          {[]string{get + get + get + last}, "GET /a, GET /a, GET /a, GET /z"},
		"and a half":       {[]string{get + get[:10], get[10:] + last[:1], last[1:]}, "GET /a, GET /a, GET /z"},
		"one by one":       {[]string{get, "→" + get, "→" + get, "→" + get, "→" + last}, "GET /a, GET /a, GET /a, GET /a, GET /z"},
		"body":             {[]string{post + "abcdef" + last}, "POST /p abcdef, GET /z"},
		"body in parts":    {[]string{get, "→" + post + "abc", "def" + get, "→" + last}, "GET /a, POST /p abcdef, GET /a, GET /z"},
		"body later":       {[]string{get, "→" + post, "abcdef", "→" + last}, "GET /a, POST /p abcdef, GET /z"},
		"two lines' ends":  {[]string{post + "abcdef\r\n" + last}, "POST /p abcdef, GET /z"},
		"chunks":           {[]string{get, "→" + chunked + "3\r\nabc\r\n", "0\r\n\r\n" + last}, "GET /a, POST /c abc, GET /z"},
		"100":              {[]string{get, "→" + strings.Replace(post, "\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n", 1), "→abcdef" + last}, "GET /a, 100, POST /p abcdef, GET /z"},
		"long head":        {[]string{get, "→GET /b HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("x", 20<<10), "\r\n\r\n" + last}, "GET /a, GET /b, GET /z"},
		"no request":       {[]string{get, "→hello\r\n\r\n"}, "GET /a, 400"},
		"the handler ends": {[]string{get, "→" + strings.Replace(get, "/a", "/abort", 1) + last}, "GET /a"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPolled(t, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil || r.URL.Path == "/abort" {
					panic(http.ErrAbortHandler)
				}
				fmt.Fprint(w, strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Method, r.URL.Path, body)))
			})
			conn := s.dial(t)
			r := bufio.NewReader(conn)
			var got []string
			read := func() bool {
				answer, err := http.ReadResponse(r, nil)
				if err != nil {
					return false
				}
				body, _ := io.ReadAll(answer.Body)
				if answer.StatusCode != 200 {
					body = fmt.Append(nil, answer.StatusCode)
				}
				got = append(got, string(body))
				return true
			}
			for _, part := range c.parts {
				if text, after := strings.CutPrefix(part, "→"); after {
					part = text
					read()
				}
				if _, err := io.WriteString(conn, part); err != nil {
					t.Fatal(err)
				}
			}
			for read() {
			}
			if all := strings.Join(got, ", "); all != c.want {
				t.Errorf("%s, want %s", all, c.want)
			}
			_ = conn.Close()
			<-s.ended
		})
	}
}

// TestPolledEnd: a client that ends its side is heard, with its first request or with a later one.
func TestPolledEnd(t *testing.T) {
	for _, before := range []int{0, 3} {
		s := newPolled(t, echo)
		conn := s.dial(t)
		r := bufio.NewReader(conn)
		for i := range before + 1 {
			if _, err := io.WriteString(conn, "GET /a HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if i == before {
				_ = conn.CloseWrite()
			}
			answer, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, answer.Body)
		}
		if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
			t.Errorf("after %d: %q %v", before, rest, err)
		}
		<-s.ended
	}
}

// TestPolledHijacked: a connection can be taken for another protocol, and by nobody while it
// is read.
func TestPolledHijacked(t *testing.T) {
	s := newPolled(t, func(w http.ResponseWriter, r *http.Request) {
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			w.WriteHeader(http.StatusConflict)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		_, _ = io.Copy(conn, buf)
	})
	conn := s.dial(t)
	r := bufio.NewReader(conn)
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	answer, err := http.ReadResponse(r, nil)
	if err != nil || answer.StatusCode != http.StatusConflict {
		t.Fatal(answer, err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhel")
	if answer, err := http.ReadResponse(r, nil); err != nil || answer.StatusCode != 101 {
		t.Fatal(answer, err)
	}
	_, _ = io.WriteString(conn, "lo")
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(r); string(got) != "hello" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	<-s.ended
}

// TestPolledShutdown: connections end although their handlers run while they are polled: when these
// have, or at the time's end, all of them at once.
func TestPolledShutdown(t *testing.T) {
	const n = 20
	called := make(chan struct{}, n)
	s := newPolled(t, func(w http.ResponseWriter, r *http.Request) {
		called <- struct{}{}
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	})
	for range n {
		_, _ = io.WriteString(s.dial(t), "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	}
	idle := s.dial(t)
	for range n {
		<-called
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Shutdown(ctx)
	}()
	if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the idle connection: %v", err)
	}
	cancel()
	<-done
}

// TestAsked: what a kept connection brings before it is asked is no answer, and one that was
// closed is not used, whatever the request is.
func TestAsked(t *testing.T) {
	ok := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	for name, end := range map[string]func(c net.Conn){
		"closed":    func(c net.Conn) { c.Close() },
		"not asked": func(c net.Conn) { io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 2\r\n\r\nno") },
		"and closed": func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 2\r\n\r\nno")
			c.Close()
		},
		"still there": func(c net.Conn) {},
	} {
		for _, body := range []string{"", "body"} {
			kept, again := make(chan net.Conn, 10), make(chan struct{})
			p, connections := endpoint(t, func(n int, c net.Conn) {
				answering(ok)(n, struct{ net.Conn }{&after{Conn: c, first: func() { kept <- c; <-again }}})
			})
			if got, _, err := ask(t, p, "POST", body); got != "ok" || err != nil {
				t.Fatalf("%s: %q %v", name, got, err)
			}
			end(<-kept)
			close(again)
			if got, _, err := ask(t, p, "POST", body); got != "ok" || err != nil {
				t.Errorf("%s with %q: %q %v", name, body, got, err)
			}
			if n, want := connections.Load(), map[bool]int32{true: 1, false: 2}[name == "still there"]; n != want {
				t.Errorf("%s with %q: %d connections", name, body, n)
			}
		}
	}
}

// An after calls a function before what follows the first answer is read.
type after struct {
	net.Conn
	wrote bool
	first func()
}

func (a *after) Write(b []byte) (int, error) {
	n, err := a.Conn.Write(b)
	a.wrote = true
	return n, err
}

func (a *after) Read(b []byte) (int, error) {
	if a.wrote && a.first != nil {
		a.first()
		a.first = nil
	}
	return a.Conn.Read(b)
}

// TestAskedFull: a head that the socket does not take at once is sent nevertheless.
func TestAskedFull(t *testing.T) {
	const size = 1 << 20
	begin := make(chan struct{})
	p, _ := endpoint(t, func(_ int, c net.Conn) {
		<-begin
		r := bufio.NewReader(c)
		line, _ := r.ReadString('\n')
		n := len(line)
		for line != "\r\n" {
			var err error
			if line, err = r.ReadString('\n'); err != nil {
				return
			}
			n += len(line)
		}
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%d", len(fmt.Sprint(n)), n)
	})
	dial := p.Dial
	p.Dial = func(ctx context.Context) (net.Conn, net.Conn, error) {
		c, s, err := dial(ctx)
		if err == nil {
			_ = c.(*net.TCPConn).SetWriteBuffer(4096)
		}
		return c, s, err
	}
	time.AfterFunc(10*time.Millisecond, func() { close(begin) })
	r, _ := http.NewRequest("GET", "http://h/x", nil)
	r.RequestURI = "/x"
	r.Header.Set("X", strings.Repeat("a", size))
	answer, err := p.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if !bytes.HasPrefix(got, []byte("10486")) {
		t.Errorf("%s bytes of a head came", got)
	}
}
