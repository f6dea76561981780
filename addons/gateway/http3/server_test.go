package http3

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	client "github.com/quic-go/quic-go/http3"
)

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"a.test"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

var trusting = &tls.Config{InsecureSkipVerify: true, ServerName: "a.test", NextProtos: []string{Protocol}}

// A served is a Server with what it counts.
type served struct {
	*Server
	at   string
	open atomic.Int64
	left sync.WaitGroup
	most atomic.Int64
}

func serve(t *testing.T, h http.HandlerFunc) *served {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &served{at: socket.LocalAddr().String()}
	s.most.Store(1000)
	s.Server, err = Open(socket, Config{
		Handler: h, TLS: &tls.Config{Certificates: []tls.Certificate{certificate(t)}, NextProtos: []string{Protocol}},
		Enter: func(netip.Addr) func() {
			if s.open.Add(1) > s.most.Load() {
				s.open.Add(-1)
				return nil
			}
			s.left.Add(1)
			return func() { s.open.Add(-1); s.left.Done() }
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Close(ctx)
		s.left.Wait() // each connection is counted out
	})
	return s
}

// clientOf is a client that sends all requests to one server.
func clientOf(t *testing.T, s *served) *http.Client {
	t.Helper()
	tr := &client.Transport{TLSClientConfig: trusting, Dial: func(ctx context.Context, _ string, c *tls.Config, q *quic.Config) (*quic.Conn, error) {
		return quic.DialAddrEarly(ctx, s.at, c, q)
	}}
	t.Cleanup(func() { _ = tr.Close() })
	return &http.Client{Transport: tr}
}

func bodyOf(t *testing.T, r *http.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRequestAndAnswer(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Header", r.Header.Get("X-Header"))
		w.Header().Set("Connection", "close")
		fmt.Fprintf(w, "%s %s %s %s %d %q", r.Method, r.Host, r.RequestURI, r.Proto, r.ContentLength, b)
		w.Header().Set("X-Sum", "1")
	})
	c := clientOf(t, s)
	r, err := c.Get("https://a.test/path?q=1")
	if got, want := bodyOf(t, r, err), `GET a.test /path?q=1 HTTP/3.0 0 ""`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if r.Trailer.Get("X-Sum") != "1" || r.Header.Get("Connection") != "" {
		t.Errorf("trailer %v, header %v", r.Trailer, r.Header)
	}
	r, err = c.Post("https://a.test/", "text/plain", strings.NewReader("hello"))
	if got, want := bodyOf(t, r, err), `POST a.test / HTTP/3.0 5 "hello"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if r, err = c.Head("https://a.test/"); err != nil || r.Header.Get("Content-Length") != "" {
		t.Errorf("HEAD: %v, %v", r, err)
	}
}

func TestLargeBodiesBothWays(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(w, r.Body); err != nil {
			t.Error(err)
		}
	})
	const size = 8 << 20
	r, err := clientOf(t, s).Post("https://a.test/", "", io.LimitReader(zeros{}, size))
	if got := len(bodyOf(t, r, err)); got != size {
		t.Errorf("%d bytes came back, want %d", got, size)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestAnswersBeginBeforeTheBodyEnds(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		b := make([]byte, 4)
		for range 3 {
			if _, err := io.ReadFull(r.Body, b); err != nil {
				t.Error(err)
			}
			_, _ = w.Write(b)
			w.(http.Flusher).Flush()
		}
	})
	in, out := io.Pipe()
	r, err := clientOf(t, s).Post("https://a.test/", "", in)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := io.WriteString(out, "ping"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4)
		if _, err := io.ReadFull(r.Body, b); err != nil || string(b) != "ping" {
			t.Fatalf("%q, %v", b, err)
		}
	}
	_ = out.Close()
	_ = r.Body.Close()
}

// What breaks off must not look whole to the client.
func TestBrokenAnswers(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/panic":
			_, _ = io.WriteString(w, "some")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/short":
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "some")
		}
	})
	c := clientOf(t, s)
	for _, path := range []string{"/panic", "/short"} {
		r, err := c.Get("https://a.test" + path)
		if err == nil {
			_, err = io.ReadAll(r.Body)
		}
		if err == nil {
			t.Errorf("%s: the answer looks whole", path)
		}
	}
}

func TestFieldsThatAreTooMany(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the handler was called") })
	for _, n := range []int{300, 5000} {
		r, err := http.NewRequest("GET", "https://a.test/", nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			r.Header.Set(fmt.Sprintf("X-%d", i), "0123456789")
		}
		answer, err := clientOf(t, s).Do(r)
		if err != nil || answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%d fields: %v, %v", n, answer, err)
		}
	}
}

func TestShutdownLetsRequestsEnd(t *testing.T) {
	started, goOn := make(chan struct{}), make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(started)
			<-goOn
		}
		_, _ = io.WriteString(w, "done")
	})
	c := clientOf(t, s)
	var group sync.WaitGroup
	group.Go(func() {
		r, err := c.Get("https://a.test/slow")
		if got := bodyOf(t, r, err); got != "done" {
			t.Errorf("got %q", got)
		}
	})
	<-started
	closed := make(chan struct{})
	go func() { s.Close(context.Background()); close(closed) }()
	for leaving := false; !leaving; runtime.Gosched() {
		s.mu.Lock()
		leaving = s.leaving
		s.mu.Unlock()
	}
	close(goOn)
	group.Wait()
	<-closed
}

func TestTooManyConnections(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	s.most.Store(1)
	r, err := clientOf(t, s).Get("https://a.test/")
	bodyOf(t, r, err)
	if _, err := clientOf(t, s).Get("https://a.test/"); err == nil {
		t.Error("a second connection was let in")
	}
}

// Clients whose addresses nobody has shown to be theirs must come back with a token, once
// many handshakes are under way.
func TestAddressesAreVerifiedUnderLoad(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	s.handshaking.Store(maxHandshakes)
	defer s.handshaking.Store(0)
	r, err := clientOf(t, s).Get("https://a.test/")
	if got := bodyOf(t, r, err); got != "ok" {
		t.Errorf("got %q", got)
	}
}

// Garbage neither ends the server nor is it answered with more than it was.
func TestGarbage(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	c, err := net.Dial("udp", s.at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := 0
	for i := range 2000 {
		b := make([]byte, 1+i%1400)
		_, _ = rand.Read(b)
		n, _ := c.Write(b)
		sent += n
	}
	got := 0
	buf := make([]byte, 2000)
	for {
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := c.Read(buf)
		if err != nil {
			break
		}
		got += n
	}
	if got > sent {
		t.Errorf("%d bytes were answered with %d", sent, got)
	}
	r, err := clientOf(t, s).Get("https://a.test/")
	if got := bodyOf(t, r, err); got != "ok" {
		t.Errorf("got %q", got)
	}
	if n := s.handshaking.Load(); n > maxHandshakes {
		t.Errorf("%d handshakes are under way", n)
	}
}

// dial is a connection without a client's HTTP/3.
func dial(t *testing.T, s *served) *quic.Conn {
	t.Helper()
	c, err := quic.DialAddr(t.Context(), s.at, trusting, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.CloseWithError(quic.ApplicationErrorCode(noError), "") })
	return c
}

// endOf is why a connection was ended by the server.
func endOf(t *testing.T, c *quic.Conn) code {
	t.Helper()
	<-c.Context().Done()
	of, ok := errors.AsType[*quic.ApplicationError](context.Cause(c.Context()))
	if !ok {
		t.Fatal(context.Cause(c.Context()))
	}
	return code(of.ErrorCode)
}

func TestFramesThatMayNotBe(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	for _, test := range []struct {
		name    string
		control bool // on a stream that carries no request
		sent    []byte
		want    code
	}{
		{"data before the head", false, []byte{frameData, 1, 0}, frameUnexpected},
		{"settings on a request's stream", false, []byte{frameSettings, 0}, frameUnexpected},
		{"a frame of HTTP/2", false, []byte{0x8, 0}, frameUnexpected},
		{"fields of a table that is not there", false, []byte{frameHeaders, 3, 1, 0, 0x80}, decompressionFailed},
		{"no settings", true, []byte{controlStream, frameGoAway, 1, 0}, missingSettings},
		{"settings twice", true, []byte{controlStream, frameSettings, 0, frameSettings, 0}, frameUnexpected},
		{"one setting twice", true, []byte{controlStream, frameSettings, 4, 6, 1, 6, 1}, settingsError},
		{"a setting of HTTP/2", true, []byte{controlStream, frameSettings, 2, 3, 1}, settingsError},
		{"settings without end", true, []byte{controlStream, frameSettings, 0x80, 1, 0, 0}, excessiveLoad},
		{"data on the control stream", true, []byte{controlStream, frameSettings, 0, frameData, 0}, frameUnexpected},
		{"a push", true, []byte{pushStream}, streamCreationError},
		{"an entry for a table", true, []byte{encoderStream, 0x41}, encoderStreamError},
		{"an acknowledgement of a table", true, []byte{decoderStream, 0x80, 0x01}, encoderStreamError + 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := dial(t, s)
			var err error
			if test.control {
				var st *quic.SendStream
				if st, err = c.OpenUniStream(); err == nil {
					_, err = st.Write(test.sent)
				}
			} else {
				var st *quic.Stream
				if st, err = c.OpenStream(); err == nil {
					_, err = st.Write(test.sent)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := endOf(t, c); got != test.want {
				t.Errorf("the connection ended with %#x, want %#x", got, test.want)
			}
		})
	}
}

func TestControlStreamTwice(t *testing.T) {
	c := dial(t, serve(t, func(http.ResponseWriter, *http.Request) {}))
	for range 2 {
		st, err := c.OpenUniStream()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Write([]byte{controlStream, frameSettings, 0}); err != nil {
			t.Fatal(err)
		}
	}
	if got := endOf(t, c); got != streamCreationError {
		t.Errorf("the connection ended with %#x", got)
	}
}

// A client that opens streams to give them up loses its connection.
func TestCanceledStreams(t *testing.T) {
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	c := dial(t, s)
	head := requestHead(t, pseudo{"GET", "https", "a.test", "/"})
	for {
		st, err := c.OpenStreamSync(t.Context())
		if err != nil {
			break
		}
		_, _ = st.Write(head)
		_ = st.Close()
		// Once the server has it.
		_ = st.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, _ = st.Read(make([]byte, 1))
		st.CancelRead(quic.StreamErrorCode(requestCancelled))
	}
	if got := endOf(t, c); got != excessiveLoad {
		t.Errorf("the connection ended with %#x", got)
	}
}

func requestHead(t *testing.T, p pseudo, more ...string) []byte {
	t.Helper()
	return appendHeaders(append([]string{":method", p.method, ":scheme", p.scheme, ":authority", p.authority, ":path", p.path}, more...)...)
}

// Of a body that is not what its head says, the handler sees that.
func TestBodiesThatAreNotAsLong(t *testing.T) {
	got := make(chan error, 1)
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		got <- err
	})
	for _, sent := range []string{"abc", "abcdefg"} {
		c := dial(t, s)
		st, err := c.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		b := requestHead(t, pseudo{"POST", "https", "a.test", "/"}, "content-length", "5")
		_, _ = st.Write(append(appendHead(b, frameData, len(sent)), sent...))
		_ = st.Close()
		if err := <-got; err == nil {
			t.Errorf("%q was taken for 5 bytes", sent)
		}
	}
}
