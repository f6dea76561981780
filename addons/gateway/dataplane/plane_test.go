package dataplane

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"knarr/addons/gateway/route"
)

// A fixture is a Plane on loopback with sockets of the test's.
type fixture struct {
	*Plane
	t       *testing.T
	sockets map[string]net.Listener
	packets map[string]net.PacketConn
	end     func()
}

// newPlane runs a Plane until the test's end. Port N of a listener is any free one.
func newPlane(t *testing.T, o Options) *fixture {
	f := &fixture{t: t, sockets: map[string]net.Listener{}, packets: map[string]net.PacketConn{}}
	o.Listen = func(network, address string) (net.Listener, error) {
		l, err := net.Listen(network, "127.0.0.1:0")
		if err == nil {
			f.sockets[address] = l
		}
		return l, err
	}
	o.ListenPacket = func(network, address string) (net.PacketConn, error) {
		l, err := net.ListenPacket(network, "127.0.0.1:0")
		if err == nil {
			f.packets[address] = l
		}
		return l, err
	}
	f.Plane = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Run(ctx)
	}()
	f.end = func() {
		cancel()
		<-done
	}
	t.Cleanup(f.end)
	return f
}

func (f *fixture) apply(c *route.Config) {
	f.t.Helper()
	for name, err := range f.Apply(c) {
		if err != nil {
			f.t.Fatalf("%s: %v", name, err)
		}
	}
}

// at is where a port is.
func (f *fixture) at(port int) string { return f.sockets[fmt.Sprintf(":%d", port)].Addr().String() }

// to is the endpoint of a server.
func to(address string) route.Endpoint {
	return route.Endpoint{Address: netip.MustParseAddrPort(strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "http://"))}
}

// serve is a backend that a handler answers for.
func (f *fixture) serve(name string, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(h)
	f.t.Cleanup(s.Close)
	f.SetEndpoints(name, []route.Endpoint{to(s.URL)})
	return s
}

// send is one request over a connection of its own.
func (f *fixture) send(port int, request string) (*http.Response, string) {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.at(port))
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		f.t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		f.t.Fatalf("%q: %v", request, err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer, string(body)
}

func one(name string, port uint16, backends ...string) *route.Config {
	c := &route.Config{Backends: map[string]route.Backend{}}
	l := route.Listener{Name: name, Port: port, PublicPort: port, Protocol: route.HTTP}
	for _, b := range backends {
		c.Backends[b] = route.Backend{Protocol: route.BackendHTTP}
		l.Routes = append(l.Routes, &route.Route{Name: "Ingress default/" + b, Rules: []route.Rule{
			{Matches: []route.Match{{Path: "/" + b}}, Backends: []route.Share{{Backend: b, Weight: 1}}}}})
	}
	c.Listeners = []route.Listener{l}
	return c
}

func TestHTTP(t *testing.T) {
	f := newPlane(t, Options{})
	f.apply(one("http", 80, "a", "b"))
	f.serve("a", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s %s|%s", r.Method, r.Host, r.RequestURI, r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Forwarded-Port"), body)
	})
	for request, want := range map[string]string{
		"GET /a/x?q=1 HTTP/1.1\r\nHost: h.example\r\n\r\n":                                       "200 GET h.example /a/x?q=1 127.0.0.1 80|",
		"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc":                            "200 POST h /a 127.0.0.1 80|abc",
		"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n": "200 POST h /a 127.0.0.1 80|abc",
		"GET /b HTTP/1.1\r\nHost: h\r\n\r\n":                                                     "503 Service Unavailable\n",
		"GET /c HTTP/1.1\r\nHost: h\r\n\r\n":                                                     "404 Not Found\n",
		"GET /x/../a/%2e%2e/a HTTP/1.1\r\nHost: h\r\n\r\n":                                       "200 GET h /a 127.0.0.1 80|",
		"GET /a HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n":                         "200 GET h /a 127.0.0.1 80|",
	} {
		answer, body := f.send(80, request)
		if got := fmt.Sprint(answer.StatusCode, " ", body); got != want {
			t.Errorf("%q: %q, want %q", request, got, want)
		}
	}
	f.Apply(&route.Config{})
	if conn, err := net.Dial("tcp", f.at(80)); err == nil {
		conn.Close()
		t.Error("a listener that went still listens")
	}
}

// newCertificate is a self-signed one for some names.
func newCertificate(t *testing.T, names ...string) (*tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pool
}

// client asks the fixture's port for any host.
func (f *fixture) client(port int, pool *x509.CertPool, http2 bool) *http.Client {
	t := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, f.at(port))
		},
		TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: http2,
	}
	f.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func get(t *testing.T, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	answer, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(body)
}

func TestHTTPS(t *testing.T) {
	f := newPlane(t, Options{})
	a, poolA := newCertificate(t, "a.example")
	b, _ := newCertificate(t, "*.b.example")
	poolA.AddCert(b.Leaf)
	c := one("https", 443, "x")
	c.Listeners[0].Protocol, c.Listeners[0].Certificates = route.HTTPS, []*tls.Certificate{a, b}
	f.apply(c)
	f.serve("x", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host, r.Header.Get("X-Forwarded-Proto")) })
	for _, http2 := range []bool{false, true} {
		client := f.client(443, poolA, http2)
		for _, host := range []string{"a.example", "c.b.example"} {
			answer, body := get(t, client, "https://"+host+"/x")
			if body != host+"https" || answer.ProtoMajor != map[bool]int{false: 1, true: 2}[http2] {
				t.Errorf("%s: %s %q", host, answer.Proto, body)
			}
		}
	}
	// A new certificate serves the next connection, at the same socket.
	again, pool := newCertificate(t, "a.example")
	next := *c
	next.Listeners = []route.Listener{c.Listeners[0]}
	next.Listeners[0].Certificates = []*tls.Certificate{again}
	f.apply(&next)
	if _, body := get(t, f.client(443, pool, true), "https://a.example/x"); body != "a.examplehttps" {
		t.Errorf("with the new certificate: %q", body)
	}
}

// A recorded is a connection that keeps what it reads.
type recorded struct {
	net.Conn
	read bytes.Buffer
}

func (r *recorded) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.read.Write(b[:n])
	return n, err
}

// TestRecords: a small answer is one record of TLS, also a connection's first one.
func TestRecords(t *testing.T) {
	f := newPlane(t, Options{})
	cert, pool := newCertificate(t, "a.example")
	c := one("https", 443, "x")
	c.Listeners[0].Protocol, c.Listeners[0].Certificates = route.HTTPS, []*tls.Certificate{cert}
	f.apply(c)
	f.serve("x", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(8<<10))
		_, _ = w.Write(make([]byte, 8<<10))
	})
	socket := &recorded{Conn: f.dial(443)}
	conn := tls.Client(socket, &tls.Config{RootCAs: pool, ServerName: "a.example"})
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, answer.Body); n != 8<<10 || err != nil {
		t.Fatal(n, err)
	}
	longest := 0
	for b := socket.read.Bytes(); len(b) > 5; {
		n := int(b[3])<<8 | int(b[4])
		longest, b = max(longest, n), b[min(5+n, len(b)):]
	}
	if longest <= 8<<10 {
		t.Errorf("the longest record has %d bytes", longest)
	}
}
