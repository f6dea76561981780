package http1

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"testing"
	"time"
)

// A textConn is a connection whose client sent a text and no more.
type textConn struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
}

func newTextConn(b []byte) *textConn { return &textConn{in: bytes.NewReader(b)} }

func (c *textConn) Read(b []byte) (int, error)       { return c.in.Read(b) }
func (c *textConn) Write(b []byte) (int, error)      { return c.out.Write(b) }
func (c *textConn) Close() error                     { return nil }
func (c *textConn) SetDeadline(time.Time) error      { return nil }
func (c *textConn) SetReadDeadline(time.Time) error  { return nil }
func (c *textConn) SetWriteDeadline(time.Time) error { return nil }
func (c *textConn) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

// never is the waiter of connections that never wait.
type never struct{}

func (never) wait(time.Time) error { return os.ErrDeadlineExceeded }

// FuzzRequest: what is served is what net/http reads of the same bytes.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"POST /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
		"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nX: y\r\n\r\n",
		"GET http://h/ HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		theirs := bufio.NewReader(bytes.NewReader(b))
		c := newTextConn(b)
		NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			other, otherErr := http.ReadRequest(theirs)
			if otherErr != nil {
				if strings.Contains(otherErr.Error(), "invalid URI") || strings.Contains(otherErr.Error(), "parse ") {
					panic(http.ErrAbortHandler) // the proxy cleans paths
				}
				t.Fatalf("%q: served, but net/http says %v", b, otherErr)
			}
			otherBody, otherErr := io.ReadAll(other.Body)
			if err == nil && otherErr != nil && !strings.Contains(otherErr.Error(), "trailer") {
				t.Fatalf("%q: body %q, but net/http says %v", b, body, otherErr)
			}
			if err != nil || otherErr != nil {
				panic(http.ErrAbortHandler)
			}
			if r.Method != other.Method || r.RequestURI != other.RequestURI || r.Host != other.Host || !bytes.Equal(body, otherBody) || r.ContentLength != other.ContentLength {
				t.Fatalf("%q: %s %s %s %q %d, net/http reads %s %s %s %q %d", b, r.Method, r.RequestURI, r.Host, body, r.ContentLength,
					other.Method, other.RequestURI, other.Host, otherBody, other.ContentLength)
			}
			// An empty line more after a body is skipped by both, at another time.
			if next, _ := theirs.Peek(2); string(next) == "\r\n" {
				_, _ = theirs.Discard(2)
			}
		}), nil).Serve(c, c, nil)
	})
}

// FuzzChunked: a body that is read is the one that net/http reads.
func FuzzChunked(f *testing.F) {
	for _, s := range []string{"3\r\nabc\r\n0\r\n\r\n", "1;a=b\r\nx\r\n0\r\nA: b\r\n\r\n", "0\r\n\r\n", "3\nabc\n0\n\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var ours body
		r := &reader{conn: newTextConn(b), waiter: never{}}
		ours.start(r, bodyChunked, unknownLength)
		var got bytes.Buffer
		buf := make([]byte, 7)
		for {
			n, err := ours.read(buf)
			got.Write(buf[:n])
			if err == io.EOF {
				break
			}
			if err != nil {
				return // stricter than others
			}
		}
		want, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(b)))
		if err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("%q: %q, net/http reads %q, %v", b, got.Bytes(), want, err)
		}
	})
}

// FuzzAnswer: whatever an endpoint answers, reading it ends.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 204 \r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &Pool{WriteTimeout: time.Minute, IdleTimeout: time.Minute}
		c := p.connection(newTextConn(b), nil)
		r, err := http.NewRequest("GET", "http://h/", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := c.roundTrip(r, false)
		if err != nil {
			c.end(false)
			return
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	})
}
