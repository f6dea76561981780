package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"knarr/addons/gateway/http1"
	"knarr/addons/gateway/route"
)

// A fixture is a Port on loopback.
type fixture struct {
	t       *testing.T
	proxy   *Proxy
	port    *Port
	address string
	backend map[string]route.Backend

	mu      sync.Mutex
	records []Record
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, backend: map[string]route.Backend{}}
	f.proxy = New(Config{Ended: func(r *Record) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.records = append(f.records, *r)
	}})
	f.port = f.proxy.NewPort(false)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = l.Addr().String()
	s := http1.NewServer(f.port, nil)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.Serve(c, c, nil)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Shutdown(ctx)
		f.proxy.Close()
	})
	return f
}

// serve adds a backend of handlers, each at an endpoint of its own.
func (f *fixture) serve(name string, of route.Backend, handlers ...http.HandlerFunc) {
	f.backend[name] = of
	var at []route.Endpoint
	for _, h := range handlers {
		s := httptest.NewServer(h)
		f.t.Cleanup(s.Close)
		at = append(at, route.Endpoint{Address: netip.MustParseAddrPort(strings.TrimPrefix(s.URL, "http://"))})
	}
	f.proxy.SetEndpoints(name, at)
}

// rules serves one route of some rules at all hosts.
func (f *fixture) rules(l route.Listener, rules ...route.Rule) {
	l.Name, l.Protocol, l.PublicPort = "http", route.HTTP, 80
	l.Routes = []*route.Route{{Name: "HTTPRoute default/r", Rules: rules}}
	c := f.proxy.Compile(&route.Config{Listeners: []route.Listener{l}, Backends: maps.Clone(f.backend)})
	f.port.Set([]*Site{c.Sites["http"]})
	c.Release()
}

// send sends a request's lines and reads the answer.
func (f *fixture) send(lines string) (*http.Response, string) {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, lines); err != nil {
		f.t.Fatal(err)
	}
	method, _, _ := strings.Cut(lines, " ")
	answer, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		f.t.Fatalf("%q: %v", lines, err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer, string(body)
}

// get is a request without a body, with further header lines.
func (f *fixture) get(target string, headers ...string) (*http.Response, string) {
	f.t.Helper()
	method := "GET"
	if m, rest, ok := strings.Cut(target, " "); ok {
		method, target = m, rest
	}
	lines := method + " " + target + " HTTP/1.1\r\nHost: www.example.com\r\n"
	for _, h := range headers {
		lines += h + "\r\n"
	}
	return f.send(lines + "\r\n")
}

// show answers with what the backend was asked.
func show(names ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s", r.Method, r.Host, r.RequestURI)
		for _, n := range names {
			fmt.Fprintf(w, " %s=%s", n, strings.Join(r.Header[n], ","))
		}
	}
}

func to(name string) []route.Share { return []route.Share{{Backend: name, Weight: 1}} }

func TestRedirect(t *testing.T) {
	f := newFixture(t)
	full, prefix := "/full", "/new/"
	at := func(path string, r route.Redirect) route.Rule {
		return route.Rule{Matches: []route.Match{{Path: path}}, Filters: route.Filters{Redirect: &r}}
	}
	f.rules(route.Listener{},
		at("/https", route.Redirect{Scheme: "https", Code: 301}),
		at("/host", route.Redirect{Hostname: "other.example"}),
		at("/port", route.Redirect{Port: 8080}),
		at("/default", route.Redirect{Scheme: "https", Port: 443}),
		at("/full", route.Redirect{Path: &route.PathChange{Full: &full}}),
		at("/prefix", route.Redirect{Path: &route.PathChange{Prefix: &prefix}, Code: 308}),
		at("/whole", route.Redirect{Location: "https://else.example/x?y"}),
		at("/plain", route.Redirect{Scheme: "https", OnlyPlain: true}),
	)
	for target, want := range map[string]string{
		"/https/a?b=c":  "301 https://www.example.com/https/a?b=c",
		"/host":         "302 http://other.example/host",
		"/port":         "302 http://www.example.com:8080/port",
		"/default":      "302 https://www.example.com/default",
		"/full/a?b":     "302 http://www.example.com/full?b",
		"/prefix":       "308 http://www.example.com/new",
		"/prefix/":      "308 http://www.example.com/new/",
		"/prefix/a%2fb": "308 http://www.example.com/new/a%2Fb",
		"/whole":        "302 https://else.example/x?y",
		"/plain":        "302 https://www.example.com/plain",
	} {
		answer, _ := f.get(target)
		if got := fmt.Sprint(answer.StatusCode, " ", answer.Header.Get("Location")); got != want {
			t.Errorf("%s: %s, want %s", target, got, want)
		}
	}
}

func TestRewrite(t *testing.T) {
	f := newFixture(t)
	f.serve("b", route.Backend{}, show())
	xyz, none, root, full := "/xyz/", "", "/", "/full path"
	at := func(path string, c route.PathChange) route.Rule {
		return route.Rule{Matches: []route.Match{{Path: path}}, Backends: to("b"), Filters: route.Filters{Rewrite: &route.Rewrite{Path: &c}}}
	}
	regexpRule := route.Rule{Matches: []route.Match{{PathType: route.PathRegexp, Pattern: regexp.MustCompile(`(?i)/groups(/|$)(.*)`)}}, Backends: to("b"),
		Filters: route.Filters{Rewrite: &route.Rewrite{Hostname: "inner.example", Path: &route.PathChange{Template: "/$2?more=$9"}}}}
	f.rules(route.Listener{}, at("/xyz", route.PathChange{Prefix: &xyz}), at("/none", route.PathChange{Prefix: &none}),
		at("/root", route.PathChange{Prefix: &root}), at("/full", route.PathChange{Full: &full}), regexpRule)
	for target, want := range map[string]string{
		"/xyz/bar?q":      "GET www.example.com /xyz/bar?q",
		"/xyz":            "GET www.example.com /xyz",
		"/xyz/":           "GET www.example.com /xyz/",
		"/none/bar":       "GET www.example.com /bar",
		"/none/":          "GET www.example.com /",
		"/none":           "GET www.example.com /",
		"/root/":          "GET www.example.com /",
		"/root":           "GET www.example.com /",
		"/full/a?b":       "GET www.example.com /full%20path?b",
		"/groups/a/b?c=d": "GET inner.example /a/b?more=&c=d",
		"/Groups":         "GET inner.example /?more=",
	} {
		if _, body := f.get(target); body != want {
			t.Errorf("%s: %q, want %q", target, body, want)
		}
	}
}

func TestHeaders(t *testing.T) {
	f := newFixture(t)
	f.serve("b", route.Backend{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.Header().Set("X-Old", "1")
		show("X-Set", "X-Add", "X-Gone", "X-Hop", "Te", "Keep-Alive", "Upgrade", "Http2-Settings", "User-Agent", "X-Forwarded-For", "X-Real-Ip")(w, r)
	})
	f.rules(route.Listener{}, route.Rule{Backends: to("b"), Filters: route.Filters{
		RequestHeaders:  &route.Headers{Set: []route.Header{{Name: "x-set", Value: "s"}, {Name: "Host", Value: "set.example"}}, Add: []route.Header{{Name: "X-Add", Value: "2"}}, Remove: []string{"x-gone"}},
		ResponseHeaders: &route.Headers{Set: []route.Header{{Name: "x-new", Value: "n"}}, Remove: []string{"X-Old"}},
	}})
	answer, body := f.get("/", "X-Set: a", "X-Add: 1", "X-Gone: 1", "Connection: x-hop, keep-alive, Upgrade, HTTP2-Settings", "X-Hop: 1", "Keep-Alive: 5", "TE: trailers, gzip",
		"Upgrade: h2c", "HTTP2-Settings: AAAA", "X-Forwarded-For: 1.2.3.4", "X-Real-IP: 1.2.3.4", "Forwarded: for=1.2.3.4")
	want := "GET set.example / X-Set=s X-Add=1,2 X-Gone= X-Hop= Te=trailers Keep-Alive= Upgrade= Http2-Settings= User-Agent= X-Forwarded-For=127.0.0.1 X-Real-Ip=127.0.0.1"
	if body != want {
		t.Errorf("asked %q, want %q", body, want)
	}
	if h := answer.Header; h.Get("X-New") != "n" || h.Get("X-Old") != "" || h.Get("X-Hop") != "" || h.Get("Connection") != "" {
		t.Errorf("answered %v", h)
	}
}

func TestForwarded(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")}
	for _, c := range []struct {
		peer, header, want string
		trusted            []netip.Prefix
	}{
		{"127.0.0.1", "1.2.3.4", "127.0.0.1", nil},
		{"127.0.0.1", "1.2.3.4", "1.2.3.4", trusted},
		{"127.0.0.1", "6.6.6.6, 1.2.3.4, 10.1.1.1", "1.2.3.4", trusted},
		{"127.0.0.1", "10.2.2.2, 10.1.1.1", "10.2.2.2", trusted},
		{"127.0.0.1", "1.2.3.4, garbage", "127.0.0.1", trusted},
		{"127.0.0.1", "1.2.3.4:77", "1.2.3.4", trusted},
		{"127.0.0.1", "", "127.0.0.1", trusted},
		{"5.5.5.5", "1.2.3.4", "5.5.5.5", trusted},
		{"127.0.0.1", "2001:db8::1", "2001:db8::1", trusted},
	} {
		h := http.Header{}
		if c.header != "" {
			h.Set("X-Forwarded-For", c.header)
		}
		if got := clientAddress(netip.MustParseAddr(c.peer), h, c.trusted); got.String() != c.want {
			t.Errorf("%s %q: %v, want %s", c.peer, c.header, got, c.want)
		}
	}
	f := newFixture(t)
	f.serve("b", route.Backend{}, show("X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "X-Real-Ip"))
	for _, c := range []struct {
		trusted []netip.Prefix
		want    string
	}{
		{nil, "X-Forwarded-For=127.0.0.1 X-Forwarded-Proto=http X-Forwarded-Host=www.example.com X-Forwarded-Port=80 X-Real-Ip=127.0.0.1"},
		{trusted, "X-Forwarded-For=1.2.3.4, 127.0.0.1 X-Forwarded-Proto=https X-Forwarded-Host=out.example X-Forwarded-Port=8443 X-Real-Ip=1.2.3.4"},
	} {
		f.rules(route.Listener{TrustedProxies: c.trusted}, route.Rule{Backends: to("b")})
		_, body := f.get("/", "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Proto: https", "X-Forwarded-Host: out.example", "X-Forwarded-Port: 8443")
		if body != "GET www.example.com / "+c.want {
			t.Errorf("trusted %v: %q", c.trusted, body)
		}
	}
}

func TestStatuses(t *testing.T) {
	f := newFixture(t)
	slow := make(chan struct{})
	defer close(slow)
	f.serve("slow", route.Backend{}, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-slow:
		case <-r.Context().Done():
		}
	})
	f.serve("none", route.Backend{})
	f.serve("broken", route.Backend{}, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	f.serve("ok", route.Backend{}, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	f.backend["closed"] = route.Backend{}
	f.proxy.SetEndpoints("closed", []route.Endpoint{{Address: netip.MustParseAddrPort("127.0.0.1:1")}})
	at := func(path string, r route.Rule) route.Rule {
		r.Matches = []route.Match{{Path: path}}
		return r
	}
	f.rules(route.Listener{},
		at("/slow", route.Rule{Backends: to("slow"), Timeout: 50 * time.Millisecond}),
		at("/attempt", route.Rule{Backends: to("slow"), BackendTimeout: 50 * time.Millisecond}),
		at("/none", route.Rule{Backends: to("none")}),
		at("/closed", route.Rule{Backends: to("closed")}),
		at("/broken", route.Rule{Backends: to("broken")}),
		at("/unknown", route.Rule{Backends: to("unknown")}),
		at("/invalid", route.Rule{Backends: []route.Share{{Backend: "ok", Weight: 1, Invalid: true}}}),
		at("/zero", route.Rule{Backends: []route.Share{{Backend: "ok"}}}),
		at("/status", route.Rule{Status: 418}),
		at("/limited", route.Rule{Backends: to("ok"), BodyLimit: 4}),
		at("/buffered", route.Rule{Backends: to("ok"), BodyLimit: 4, Buffer: true}),
	)
	for request, want := range map[string]int{
		"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n":                                                                    504,
		"GET /attempt HTTP/1.1\r\nHost: h\r\n\r\n":                                                                 504,
		"GET /none HTTP/1.1\r\nHost: h\r\n\r\n":                                                                    503,
		"GET /closed HTTP/1.1\r\nHost: h\r\n\r\n":                                                                  502,
		"GET /broken HTTP/1.1\r\nHost: h\r\n\r\n":                                                                  502,
		"GET /unknown HTTP/1.1\r\nHost: h\r\n\r\n":                                                                 500,
		"GET /invalid HTTP/1.1\r\nHost: h\r\n\r\n":                                                                 500,
		"GET /zero HTTP/1.1\r\nHost: h\r\n\r\n":                                                                    500,
		"GET /status HTTP/1.1\r\nHost: h\r\n\r\n":                                                                  418,
		"GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n":                                                                 404,
		"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n":                                                                     400,
		"GET / HTTP/1.1\r\nHost: a b\r\n\r\n":                                                                      400,
		"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n":                                                                    404,
		"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n":                                                            405,
		"POST /limited HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nabcd":                                       200,
		"POST /limited HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabcde":                                      413,
		"POST /limited HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n":           413,
		"POST /buffered HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n":           200,
		"POST /buffered HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n": 413,
	} {
		if answer, body := f.send(request); answer.StatusCode != want {
			t.Errorf("%q: %d %q, want %d", request, answer.StatusCode, body, want)
		}
	}
	if answer, _ := f.get("/none", "Content-Type: application/grpc"); answer.StatusCode != 200 || answer.Header.Get("Grpc-Status") != "14" {
		t.Errorf("gRPC without endpoints: %d %v", answer.StatusCode, answer.Header)
	}
}

func TestRetries(t *testing.T) {
	f := newFixture(t)
	var asked atomic.Int32
	f.serve("sometimes", route.Backend{}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if asked.Add(1)%3 != 0 {
			w.WriteHeader(503)
			return
		}
		_, _ = w.Write(body)
	})
	var reached atomic.Int32
	f.serve("half", route.Backend{}, func(w http.ResponseWriter, r *http.Request) { reached.Add(1) })
	f.proxy.SetEndpoints("half", append(f.proxy.endpoints["half"], route.Endpoint{Address: netip.MustParseAddrPort("127.0.0.1:1")}))
	f.rules(route.Listener{},
		route.Rule{Matches: []route.Match{{Path: "/retry"}}, Backends: to("sometimes"), Retry: route.Retry{Attempts: 2, Codes: []int{503}, Backoff: time.Millisecond}},
		route.Rule{Matches: []route.Match{{Path: "/half"}}, Backends: to("half")})
	for request, want := range map[string]string{
		"GET /retry HTTP/1.1\r\nHost: h\r\n\r\n":                                                   "200 ",
		"PUT /retry HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab":                            "200 ab",
		"PUT /retry HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n": "200 ab",
		"POST /retry HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab":                           "503 ",
		"POST /retry HTTP/1.1\r\nHost: h\r\nIdempotency-Key: 1\r\nContent-Length: 2\r\n\r\nab":     "200 ab",
	} {
		asked.Store(0)
		answer, body := f.send(request)
		if got := fmt.Sprint(answer.StatusCode, " ", body); got != want {
			t.Errorf("%q: %q, want %q", request, got, want)
		}
	}
	// What was not sent goes to another endpoint, whatever its method.
	for range 20 {
		if answer, _ := f.send("POST /half HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab"); answer.StatusCode != 200 {
			t.Fatalf("with an endpoint that cannot be reached: %d", answer.StatusCode)
		}
	}
}
