package dataplane

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"knarr/addons/gateway/proxyprotocol"
	"knarr/addons/gateway/route"
)

// dial is a connection to a port, with an end.
func (f *fixture) dial(port int) net.Conn {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.at(port))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}

// echoes answers each connection with a name and what it sends.
func echoes(t *testing.T, name string) route.Endpoint {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, name+":")
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return to(l.Addr().String())
}

func stream(name string, hosts []string, backend string) route.Stream {
	return route.Stream{Name: name, Hosts: hosts, Backends: []route.Share{{Backend: backend, Weight: 1}}}
}

func TestTCP(t *testing.T) {
	f := newPlane(t, Options{})
	f.SetEndpoints("b", []route.Endpoint{echoes(t, "b")})
	f.apply(&route.Config{Backends: map[string]route.Backend{"b": {}, "p": {ProxyProtocol: 2}}, Listeners: []route.Listener{
		{Name: "tcp", Port: 1, Protocol: route.TCP, Streams: []route.Stream{stream("TCPRoute default/r", nil, "b")}},
		{Name: "tcp2", Port: 2, Protocol: route.TCP, Streams: []route.Stream{stream("TCPRoute default/p", nil, "p")}},
	}})
	conn := f.dial(1)
	_, _ = io.WriteString(conn, "hello")
	_ = conn.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(conn); string(got) != "b:hello" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	f.SetEndpoints("p", []route.Endpoint{echoes(t, "p")})
	conn = f.dial(2)
	_ = conn.(*net.TCPConn).CloseWrite()
	got, _ := io.ReadAll(conn)
	from, err := proxyprotocol.Read(bufio.NewReader(strings.NewReader(strings.TrimPrefix(string(got), "p:"))))
	if err != nil || from.String() != conn.LocalAddr().String() {
		t.Errorf("the backend is told of %v, %v; want %v", from, err, conn.LocalAddr())
	}
}

func TestTLSStreams(t *testing.T) {
	f := newPlane(t, Options{})
	behind, pool := newCertificate(t, "pass.example")
	ends, _ := newCertificate(t, "ends.example", "www.example")
	pool.AddCert(ends.Leaf)
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "behind") }))
	backend.TLS = &tls.Config{Certificates: []tls.Certificate{*behind}}
	backend.StartTLS()
	t.Cleanup(backend.Close)
	f.SetEndpoints("tls", []route.Endpoint{to(backend.URL)})
	f.SetEndpoints("plain", []route.Endpoint{echoes(t, "plain")})
	f.serve("web", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "web") })
	f.apply(&route.Config{Backends: map[string]route.Backend{"tls": {}, "plain": {}, "web": {}}, Listeners: []route.Listener{
		{Name: "pass", Port: 443, Protocol: route.TLS, Hostname: "pass.example", Passthrough: true, Streams: []route.Stream{stream("r", []string{"pass.example"}, "tls")}},
		{Name: "ends", Port: 443, Protocol: route.TLS, Hostname: "ends.example", Certificates: []*tls.Certificate{ends}, Streams: []route.Stream{stream("s", nil, "plain")}},
		{Name: "web", Port: 443, Protocol: route.HTTPS, Hostname: "www.example", Certificates: []*tls.Certificate{ends}, Routes: []*route.Route{
			{Name: "w", Rules: []route.Rule{{Backends: []route.Share{{Backend: "web", Weight: 1}}}}}}},
	}})
	for host, want := range map[string]string{"pass.example": "behind", "www.example": "web"} {
		if _, body := get(t, f.client(443, pool, true), "https://"+host+"/"); body != want {
			t.Errorf("%s: %q, want %q", host, body, want)
		}
	}
	conn := tls.Client(f.dial(443), &tls.Config{ServerName: "ends.example", RootCAs: pool})
	_, _ = io.WriteString(conn, "hello")
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(conn); string(got) != "plain:hello" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	if err := tls.Client(f.dial(443), &tls.Config{ServerName: "other.example", RootCAs: pool}).Handshake(); err == nil {
		t.Error("a name without a listener is served")
	}
}

// A host that a listener says is its own is not passed on by another one's wildcard.
func TestOwnNames(t *testing.T) {
	f := newPlane(t, Options{})
	behind, pool := newCertificate(t, "a.pass.example")
	ends, _ := newCertificate(t, "own.pass.example", "x.sub.pass.example")
	pool.AddCert(ends.Leaf)
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "behind") }))
	backend.TLS = &tls.Config{Certificates: []tls.Certificate{*behind}}
	backend.StartTLS()
	t.Cleanup(backend.Close)
	f.SetEndpoints("tls", []route.Endpoint{to(backend.URL)})
	f.serve("web", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "web") })
	f.apply(&route.Config{Backends: map[string]route.Backend{"tls": {}, "web": {}}, Listeners: []route.Listener{
		{Name: "web", Port: 443, Protocol: route.HTTPS, Own: []string{"own.pass.example", "*.sub.pass.example"}, Certificates: []*tls.Certificate{ends}, Routes: []*route.Route{
			{Name: "w", Rules: []route.Rule{{Backends: []route.Share{{Backend: "web", Weight: 1}}}}}}},
		{Name: "pass", Port: 443, Protocol: route.TLS, Hostname: "*.pass.example", Passthrough: true, Streams: []route.Stream{stream("r", []string{"*.pass.example"}, "tls")}},
	}})
	for host, want := range map[string]string{"a.pass.example": "behind", "own.pass.example": "web", "x.sub.pass.example": "web"} {
		if _, body := get(t, f.client(443, pool, true), "https://"+host+"/"); body != want {
			t.Errorf("%s: %q, want %q", host, body, want)
		}
	}
}

func TestUDP(t *testing.T) {
	f := newPlane(t, Options{})
	backend, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { backend.Close() })
	go func() {
		buf := make([]byte, 100)
		for {
			n, from, err := backend.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = backend.WriteTo(append([]byte("b:"), buf[:n]...), from)
		}
	}()
	f.SetEndpoints("b", []route.Endpoint{to(backend.LocalAddr().String())})
	f.apply(&route.Config{Backends: map[string]route.Backend{"b": {}}, Listeners: []route.Listener{
		{Name: "udp", Port: 53, Protocol: route.UDP, Streams: []route.Stream{stream("UDPRoute default/r", nil, "b")}}}})
	for i := range 3 {
		conn, err := net.Dial("udp", f.packets[":53"].LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		for k := range 3 {
			text := fmt.Sprint(i, " ", k)
			_, _ = io.WriteString(conn, text)
			buf := make([]byte, 100)
			if n, err := conn.Read(buf); string(buf[:n]) != "b:"+text || err != nil {
				t.Errorf("%q %v", buf[:n], err)
			}
		}
		conn.Close()
	}
}

// TestProxyProtocol: a trusted proxy's connection is its client's, and one without the
// header is refused; nobody else's header is believed.
func TestProxyProtocol(t *testing.T) {
	f := newPlane(t, Options{})
	f.serve("b", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-For"))
	})
	for _, trusted := range []bool{true, false} {
		c := one("http", 80, "b")
		c.Listeners[0].ProxyProtocol = true
		c.Listeners[0].TrustedProxies = []netip.Prefix{netip.MustParsePrefix(map[bool]string{true: "127.0.0.0/8", false: "10.0.0.0/8"}[trusted])}
		f.apply(c)
		conn := f.dial(80)
		_, _ = io.WriteString(conn, "PROXY TCP4 1.2.3.4 5.6.7.8 1000 80\r\nGET /b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		got, _ := io.ReadAll(conn)
		if want := map[bool]string{true: "\r\n\r\n1.2.3.4", false: "\r\n\r\nBad Request\n"}[trusted]; !strings.HasSuffix(string(got), want) {
			t.Errorf("trusted %v: %q", trusted, got)
		}
		conn = f.dial(80)
		_, _ = io.WriteString(conn, "GET /b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		got, _ = io.ReadAll(conn)
		if strings.HasPrefix(string(got), "HTTP/1.1 200 ") == trusted {
			t.Errorf("without a header, trusted %v: %q", trusted, got)
		}
	}
}

// TestMisdirected: a connection for one listener carries no request for another, and
// a route that asks for a certificate gets one of its authorities.
func TestMisdirected(t *testing.T) {
	f := newPlane(t, Options{})
	cert, pool := newCertificate(t, "a.example", "b.example")
	client, clients := newCertificate(t, "me")
	other, _ := newCertificate(t, "other")
	f.serve("x", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Ssl-Client-Verify"))
	})
	site := func(host string, filters route.Filters) route.Listener {
		return route.Listener{Name: host, Port: 443, Protocol: route.HTTPS, Hostname: host, Certificates: []*tls.Certificate{cert}, Routes: []*route.Route{
			{Name: host, Rules: []route.Rule{{Filters: filters, Backends: []route.Share{{Backend: "x", Weight: 1}}}}}}}
	}
	b := site("b.example", route.Filters{Auth: &route.Auth{ClientCAs: clients, PassCertificate: true}})
	f.apply(&route.Config{Backends: map[string]route.Backend{"x": {}}, Listeners: []route.Listener{site("a.example", route.Filters{}), b}})
	for _, c := range []struct {
		sni, host string
		client    *tls.Certificate
		want      string
	}{
		{"a.example", "a.example", nil, "200 "},
		{"a.example", "b.example", nil, "421 Misdirected Request\n"},
		{"a.example", "c.example", nil, "404 Not Found\n"},
		{"b.example", "b.example", nil, "403 Forbidden\n"},
		{"b.example", "b.example", other, "403 Forbidden\n"},
		{"b.example", "b.example", client, "200 SUCCESS"},
	} {
		config := &tls.Config{ServerName: c.sni, RootCAs: pool}
		if c.client != nil {
			config.Certificates = []tls.Certificate{*c.client}
		}
		conn := tls.Client(f.dial(443), config)
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "+c.host+"\r\nSsl-Client-Verify: SUCCESS\r\nConnection: close\r\n\r\n")
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		body, _ := io.ReadAll(answer.Body)
		if got := fmt.Sprint(answer.StatusCode, " ", string(body)); got != c.want && !(c.host == "a.example" && answer.StatusCode == 200) {
			t.Errorf("%s for %s: %q, want %q", c.sni, c.host, got, c.want)
		}
	}
	// A connection without a name is none for a listener with one, beside one for all.
	all := site("", route.Filters{})
	f.apply(&route.Config{Backends: map[string]route.Backend{"x": {}}, Listeners: []route.Listener{all, b}})
	bare := tls.Client(f.dial(443), &tls.Config{InsecureSkipVerify: true})
	_, _ = io.WriteString(bare, "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n")
	if answer, err := http.ReadResponse(bufio.NewReader(bare), nil); err != nil || answer.StatusCode != 421 {
		t.Errorf("without a name: %v %v", answer, err)
	}
	// A listener that asks for certificates refuses the connection.
	l := site("c.example", route.Filters{})
	l.ClientCAs = clients
	f.apply(&route.Config{Backends: map[string]route.Backend{"x": {}}, Listeners: []route.Listener{l}})
	conn := tls.Client(f.dial(443), &tls.Config{ServerName: "c.example", InsecureSkipVerify: true})
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a client without a certificate is let in")
	}
}

// TestBackendTLS: a backend's certificate is checked if authorities are named.
func TestBackendTLS(t *testing.T) {
	f := newPlane(t, Options{})
	cert, pool := newCertificate(t, "backend.example")
	_, others := newCertificate(t, "backend.example")
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	backend.TLS, backend.EnableHTTP2 = &tls.Config{Certificates: []tls.Certificate{*cert}}, true
	backend.StartTLS()
	t.Cleanup(backend.Close)
	for name, c := range map[string]struct {
		spec route.Backend
		want string
	}{
		"unchecked":     {route.Backend{Protocol: route.BackendHTTPS}, "200 HTTP/2.0"},
		"checked":       {route.Backend{Protocol: route.BackendHTTPS, CAs: pool, ServerName: "backend.example"}, "200 HTTP/2.0"},
		"by names":      {route.Backend{Protocol: route.BackendHTTPS, CAs: pool, ServerName: "x", Names: []string{"y", "backend.example"}}, "200 HTTP/2.0"},
		"another name":  {route.Backend{Protocol: route.BackendHTTPS, CAs: pool, ServerName: "other.example"}, "502 Bad Gateway\n"},
		"another's":     {route.Backend{Protocol: route.BackendHTTPS, CAs: others, ServerName: "backend.example"}, "502 Bad Gateway\n"},
		"not by system": {route.Backend{Protocol: route.BackendHTTPS, SystemCAs: true, ServerName: "backend.example"}, "502 Bad Gateway\n"},
	} {
		f.SetEndpoints("b", []route.Endpoint{to(backend.URL)})
		cfg := one("http", 80, "b")
		cfg.Backends["b"] = c.spec
		f.apply(cfg)
		answer, body := f.send(80, "GET /b HTTP/1.1\r\nHost: h\r\n\r\n")
		if got := fmt.Sprint(answer.StatusCode, " ", body); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestDrain: a request in flight ends when its listener goes, and so it does at the
// plane's end.
func TestDrain(t *testing.T) {
	f := newPlane(t, Options{DrainTimeout: 10 * time.Second})
	arrived, release := make(chan struct{}, 4), make(chan struct{})
	f.serve("b", func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
		_, _ = io.WriteString(w, "done")
	})
	f.apply(one("http", 80, "b"))
	conn := f.dial(80)
	_, _ = io.WriteString(conn, "GET /b HTTP/1.1\r\nHost: h\r\n\r\n")
	<-arrived
	for name, err := range f.Apply(&route.Config{Backends: map[string]route.Backend{"b": {}}}) {
		t.Error(name, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.end()
	}()
	close(release)
	got, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200 ") || !strings.Contains(string(got), "done") {
		t.Errorf("%q %v", got, err)
	}
	<-ended
	for _, err := range f.Apply(one("http", 80, "b")) {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
	}
}

// TestApply: one bad listener does not spoil the others, and what stays keeps its
// connections.
func TestApply(t *testing.T) {
	f := newPlane(t, Options{})
	f.serve("b", func(w http.ResponseWriter, r *http.Request) {})
	listen := f.options.Listen
	f.options.Listen = func(network, address string) (net.Listener, error) {
		if strings.HasSuffix(address, ":81") {
			return nil, errors.New("address already in use")
		}
		return listen(network, address)
	}
	c := one("http", 80, "b")
	again := c.Listeners[0]
	c.Listeners = append(c.Listeners, []route.Listener{
		{Name: "taken", Port: 81, Protocol: route.HTTP}, {Name: "protocol", Port: 80, Protocol: route.TCP}, {Name: "host", Port: 80, Protocol: route.HTTP},
		{Name: "other", Port: 80, Protocol: route.HTTP, Hostname: "other.example"}, again,
	}...)
	results := f.Apply(c)
	for name, bad := range map[string]bool{"taken": true, "protocol": true, "host": true, "other": false} {
		if (results[name] != nil) != bad {
			t.Errorf("%s: %v", name, results[name])
		}
	}
	conn := f.dial(80)
	r := bufio.NewReader(conn)
	for range 3 {
		_, _ = io.WriteString(conn, "GET /b HTTP/1.1\r\nHost: h\r\n\r\n")
		answer, err := http.ReadResponse(r, nil)
		if err != nil || answer.StatusCode != 200 {
			t.Fatal(answer, err)
		}
		f.apply(one("http", 80, "b"))
	}
}
