package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// An endpoint is a backend that serves each connection by a function.
func endpoint(t *testing.T, serve func(n int, c net.Conn)) (*Pool, *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var connections atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := int(connections.Add(1))
			go func() {
				defer c.Close()
				serve(n, c)
			}()
		}
	}()
	p := &Pool{ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, MaxIdle: 4, IdleTimeout: time.Minute,
		Dial: func(ctx context.Context) (net.Conn, net.Conn, error) {
			c, err := net.Dial("tcp", l.Addr().String())
			return c, c, err
		}}
	t.Cleanup(func() { p.Close() })
	return p, &connections
}

// answering serves requests one after the other with a text.
func answering(text string) func(int, net.Conn) {
	return func(_ int, c net.Conn) {
		r := bufio.NewReader(c)
		for {
			request, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
		}
	}
}

func ask(t *testing.T, p *Pool, method, body string) (string, *http.Response, error) {
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequest(method, "http://h/x", reader)
	if err != nil {
		t.Fatal(err)
	}
	r.RequestURI = "/x"
	answer, err := p.RoundTrip(r)
	if err != nil {
		return "", nil, err
	}
	copied := *answer
	copied.Header = answer.Header.Clone()
	got, err := io.ReadAll(answer.Body)
	copied.Trailer = answer.Trailer
	_ = answer.Body.Close()
	return string(got), &copied, err
}

func TestPool(t *testing.T) {
	for name, c := range map[string]struct {
		answer, method, want string
		connections          int32 // of three requests
		fails                bool
	}{
		"length":          {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "GET", "abc", 1, false},
		"chunks":          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", "GET", "abc", 1, false},
		"none":            {"HTTP/1.1 204 No Content\r\n\r\n", "GET", "", 1, false},
		"HEAD":            {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "HEAD", "", 1, false},
		"close":           {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", "GET", "abc", 3, false},
		"HTTP/1.0":        {"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", "GET", "abc", 3, false},
		"100 first":       {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "POST", "abc", 1, false},
		"more than said":  {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", "GET", "abc", 3, false},
		"garbage":         {"hello\r\n\r\n", "GET", "", 3, true},
		"coding and size": {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "GET", "", 3, true},
		"two sizes":       {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "GET", "", 3, true},
		"folded line":     {"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "GET", "", 3, true},
		"endless 1xx":     {strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 20), "GET", "", 3, true},
		"long head":       {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", maxHead), "GET", "", 3, true},
	} {
		p, connections := endpoint(t, answering(c.answer))
		for range 3 {
			got, _, err := ask(t, p, c.method, "")
			if got != c.want || (err != nil) != c.fails {
				t.Errorf("%s: %q %v, want %q", name, got, err, c.want)
			}
		}
		if n := connections.Load(); n != c.connections {
			t.Errorf("%s: %d connections, want %d", name, n, c.connections)
		}
	}
}

// TestKept: a connection that the endpoint closed meanwhile is not used, and one that it
// closes just then is replaced, unless the request may have been done.
func TestKept(t *testing.T) {
	ok := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	p, connections := endpoint(t, func(n int, c net.Conn) {
		r := bufio.NewReader(c)
		for i := 0; ; i++ {
			request, err := http.ReadRequest(r)
			if err != nil || n == 1 && i == 1 {
				return // the first connection ends at its second request
			}
			_, _ = io.Copy(io.Discard, request.Body)
			_, _ = io.WriteString(c, ok)
		}
	})
	for i := range 2 {
		if got, _, err := ask(t, p, "GET", ""); got != "ok" {
			t.Errorf("request %d: %q %v", i, got, err)
		}
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
	p, _ = endpoint(t, func(n int, c net.Conn) {
		if n == 1 {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, ok)
			_, _ = c.Read(make([]byte, 1))
			return
		}
		answering(ok)(n, c)
	})
	for i, want := range []bool{true, false} {
		if _, _, err := ask(t, p, "POST", "body"); (err == nil) != want {
			t.Errorf("POST %d: %v", i, err)
		}
	}
}

// TestTrailer: what follows a chunked body is passed on with the end.
func TestTrailer(t *testing.T) {
	p, _ := endpoint(t, answering("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\nContent-Length: 9\r\n\r\n"))
	_, answer, err := ask(t, p, "GET", "")
	if err != nil || answer.Trailer.Get("X") != "y" || answer.Trailer.Get("Content-Length") != "" {
		t.Errorf("%+v %v", answer, err)
	}
}

// TestBodies: short bodies go with the head, long ones and those without a length beside
// the answer.
func TestBodies(t *testing.T) {
	p, _ := endpoint(t, func(_ int, c net.Conn) {
		r := bufio.NewReader(c)
		for {
			request, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			body, _ := io.ReadAll(request.Body)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
	})
	for _, n := range []int{1, maxGatheredBody, maxGatheredBody + 1, 1 << 20} {
		body := strings.Repeat("x", n)
		if got, _, err := ask(t, p, "POST", body); got != body || err != nil {
			t.Errorf("%d bytes: %d came back, %v", n, len(got), err)
		}
		r, _ := http.NewRequest("POST", "http://h/x", io.MultiReader(strings.NewReader(body)))
		r.RequestURI, r.ContentLength = "/x", -1
		answer, err := p.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if string(got) != body || err != nil {
			t.Errorf("%d bytes in chunks: %d came back, %v", n, len(got), err)
		}
	}
}

// TestEarlyAnswer: an endpoint that answers before it has the body is heard, and the body
// is given up.
func TestEarlyAnswer(t *testing.T) {
	p, _ := endpoint(t, func(_ int, c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		_, _ = c.Read(make([]byte, 1))
	})
	reader, writer := io.Pipe()
	r, _ := http.NewRequest("POST", "http://h/x", reader)
	r.RequestURI, r.ContentLength = "/x", -1
	answer, err := p.RoundTrip(r)
	if err != nil || answer.StatusCode != 413 {
		t.Fatal(answer, err)
	}
	_ = answer.Body.Close()
	if _, err := writer.Write([]byte("x")); err == nil {
		t.Error("the body is still read")
	}
}

// A lateConn's write of a body's end comes back when the connection is closed.
type lateConn struct {
	*net.TCPConn
	closed chan struct{}
	once   sync.Once
}

func (c *lateConn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	if strings.HasSuffix(string(b), "0\r\n\r\n") {
		<-c.closed
	}
	return n, err
}

func (c *lateConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.TCPConn.Close()
}

// TestAnswerBeforeSent: an endpoint that answers before the body's sender has returned from
// its last write leaves no closed connection to the next request.
func TestAnswerBeforeSent(t *testing.T) {
	p, _ := endpoint(t, answering("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"))
	dial := p.Dial
	p.Dial = func(ctx context.Context) (net.Conn, net.Conn, error) {
		nc, _, err := dial(ctx)
		if err != nil {
			return nil, nil, err
		}
		c := &lateConn{TCPConn: nc.(*net.TCPConn), closed: make(chan struct{})}
		return c, c, nil
	}
	r, err := http.NewRequest("POST", "http://h/x", io.MultiReader(strings.NewReader("body")))
	if err != nil {
		t.Fatal(err)
	}
	r.RequestURI, r.ContentLength = "/x", -1
	answer, err := p.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(answer.Body); string(got) != "abc" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	_ = answer.Body.Close()
	if got, _, err := ask(t, p, "POST", ""); got != "abc" || err != nil {
		t.Errorf("the next request: %q %v", got, err)
	}
}

// TestSilence: an endpoint that does not answer is given up after ReadTimeout, or when the
// request ends.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var servers []net.Conn
		p := &Pool{ReadTimeout: 5 * time.Second, WriteTimeout: time.Minute, MaxIdle: 1, IdleTimeout: time.Minute,
			Dial: func(context.Context) (net.Conn, net.Conn, error) {
				server, client := net.Pipe()
				servers = append(servers, server)
				go func() { _, _ = io.Copy(io.Discard, server) }()
				return client, client, nil
			}}
		start := time.Now()
		if _, _, err := ask(t, p, "GET", ""); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) > 7*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		for _, two := range []bool{false, true} {
			cause := errors.New("enough")
			ctx, cancel := context.WithTimeoutCause(context.Background(), 1500*time.Millisecond, cause)
			r, _ := http.NewRequestWithContext(ctx, "GET", "http://h/x", nil)
			if r.RequestURI = "/x"; two {
				r.ProtoMajor = 2
			}
			start = time.Now()
			if _, err := p.RoundTrip(r); !errors.Is(err, cause) || time.Since(start) != 1500*time.Millisecond {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			cancel()
		}
		for _, s := range servers {
			_ = s.Close()
		}
	})
}

// TestNotMade: a connection that cannot be made is told from one that breaks.
func TestNotMade(t *testing.T) {
	p := &Pool{Dial: func(context.Context) (net.Conn, net.Conn, error) { return nil, nil, errors.New("no") }}
	_, _, err := ask(t, p, "GET", "")
	if _, ok := errors.AsType[*NotMadeError](err); !ok {
		t.Errorf("%v", err)
	}
}

// TestLongUpload: an endpoint that is still sent the request has all its time to answer
// afterwards.
func TestLongUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		p := &Pool{ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
			Dial: func(context.Context) (net.Conn, net.Conn, error) { return here, here, nil }}
		go func() {
			request, err := http.ReadRequest(bufio.NewReader(there))
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			time.Sleep(8 * time.Second)
			_, _ = io.WriteString(there, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
		}()
		upload, client := io.Pipe()
		go func() {
			for range 12 {
				_, _ = client.Write(make([]byte, 1000))
				time.Sleep(5 * time.Second)
			}
			_ = client.Close()
		}()
		r, _ := http.NewRequest("POST", "http://h/x", upload)
		r.RequestURI, r.ContentLength = "/x", -1
		answer, err := p.RoundTrip(r)
		if err != nil {
			_, _, _ = upload.Close(), there.Close(), here.Close()
			t.Fatal(err)
		}
		if got, err := io.ReadAll(answer.Body); err != nil || string(got) != "ok" {
			t.Errorf("%q, %v", got, err)
		}
		_ = answer.Body.Close()
		_ = there.Close()
	})
}
