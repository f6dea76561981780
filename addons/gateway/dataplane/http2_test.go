package dataplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"knarr/addons/gateway/route"
)

// h2cServer is a backend that speaks HTTP/2 in plain only.
func (f *fixture) h2cServer(name string, h http.HandlerFunc) {
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	f.t.Cleanup(s.Close)
	f.SetEndpoints(name, []route.Endpoint{to(s.URL)})
}

// h2cClient speaks HTTP/2 in plain.
func (f *fixture) h2cClient(port int) *http.Client {
	t := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, f.at(port))
	}}
	t.Protocols.SetUnencryptedHTTP2(true)
	f.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t}
}

// TestGRPC: messages pass both ways while both sides send, and the trailer says how it
// ended, over HTTP/2 in plain and with TLS.
func TestGRPC(t *testing.T) {
	f := newPlane(t, Options{})
	cert, pool := newCertificate(t, "g.example")
	f.h2cServer("g", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		w.(http.Flusher).Flush()
		buf := make([]byte, 5)
		for {
			if _, err := io.ReadFull(r.Body, buf); err != nil {
				break
			}
			_, _ = w.Write(buf)
			w.(http.Flusher).Flush()
		}
		w.Header().Set("Grpc-Status", "0")
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", r.Header.Get("Te"))
	})
	rule := route.Rule{Matches: []route.Match{{GRPC: true, Path: "/svc/method", PathType: route.PathExact}}, Backends: []route.Share{{Backend: "g", Weight: 1}}}
	routes := []*route.Route{{Name: "GRPCRoute default/g", Rules: []route.Rule{rule}}}
	f.apply(&route.Config{Backends: map[string]route.Backend{"g": {Protocol: route.BackendH2C}}, Listeners: []route.Listener{
		{Name: "http", Port: 80, Protocol: route.HTTP, Routes: routes},
		{Name: "https", Port: 443, Protocol: route.HTTPS, Certificates: []*tls.Certificate{cert}, Routes: routes}}})
	for url, client := range map[string]*http.Client{"http://g.example": f.h2cClient(80), "https://g.example": f.client(443, pool, true)} {
		reader, writer := io.Pipe()
		r, _ := http.NewRequest("POST", url+"/svc/method", reader)
		r.Header.Set("Content-Type", "application/grpc")
		r.Header.Set("Te", "trailers")
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			text := fmt.Sprintf("msg %d", i)
			_, _ = io.WriteString(writer, text)
			buf := make([]byte, 5)
			if _, err := io.ReadFull(answer.Body, buf); string(buf) != text || err != nil {
				t.Fatalf("%q %v", buf, err)
			}
		}
		_ = writer.Close()
		if rest, err := io.ReadAll(answer.Body); len(rest) > 0 || err != nil {
			t.Errorf("%q %v", rest, err)
		}
		_ = answer.Body.Close()
		if got := fmt.Sprint(answer.Proto, answer.Trailer); got != "HTTP/2.0map[Grpc-Message:[trailers] Grpc-Status:[0]]" {
			t.Errorf("%s: %s", url, got)
		}
		r, _ = http.NewRequest("POST", url+"/svc/other", strings.NewReader("x"))
		r.Header.Set("Content-Type", "application/grpc")
		if answer, err = client.Do(r); err != nil {
			t.Fatal(err)
		}
		if _ = answer.Body.Close(); answer.StatusCode != 200 || answer.Header.Get("Grpc-Status") != "12" {
			t.Errorf("without a route: %d %v", answer.StatusCode, answer.Header)
		}
	}
}

// TestVersions: either version in front of either version behind.
func TestVersions(t *testing.T) {
	f := newPlane(t, Options{})
	cert, pool := newCertificate(t, "v.example")
	echo := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %d %s%s", r.Proto, r.Host, len(body), r.Header.Get("X-Forwarded-Proto"), r.Trailer.Get("X-Sum"))
	}
	f.serve("one", echo)
	f.h2cServer("two", echo)
	c := one("https", 443, "one", "two")
	c.Listeners[0].Protocol, c.Listeners[0].Certificates = route.HTTPS, []*tls.Certificate{cert}
	c.Backends["two"] = route.Backend{Protocol: route.BackendH2C}
	f.apply(c)
	for _, front := range []bool{false, true} {
		client := f.client(443, pool, front)
		for path, proto := range map[string]string{"one": "HTTP/1.1", "two": "HTTP/2.0"} {
			for _, n := range []int{0, 10, 1 << 20} {
				for _, known := range []bool{true, false} {
					var body io.Reader = strings.NewReader(strings.Repeat("x", n))
					if !known {
						body = io.MultiReader(body)
					}
					r, err := http.NewRequest("POST", "https://v.example/"+path, body)
					if err != nil {
						t.Fatal(err)
					}
					sum := ""
					if !known && n > 0 {
						sum = " sum"
						r.Trailer = http.Header{"X-Sum": {"sum"}}
					}
					answer, err := client.Do(r)
					if err != nil {
						t.Fatalf("HTTP/2 %v to %s with %d: %v", front, path, n, err)
					}
					got, _ := io.ReadAll(answer.Body)
					_ = answer.Body.Close()
					if want := fmt.Sprintf("%s v.example %d https%s", proto, n, strings.TrimSpace(sum)); string(got) != want {
						t.Errorf("HTTP/2 %v to %s with %d: %q, want %q", front, path, n, got, want)
					}
				}
			}
		}
	}
}

// TestBadHTTP2: what HTTP/2 can carry and HTTP/1.1 cannot does not reach a backend.
func TestBadHTTP2(t *testing.T) {
	f := newPlane(t, Options{})
	f.serve("b", func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("the backend is asked %s %q %q %v", r.Method, r.Host, r.RequestURI, r.Header)
	})
	f.apply(one("http", 80, "b"))
	for name, fields := range map[string][][2]string{
		"line's end in a value":  {{":method", "GET"}, {":scheme", "http"}, {":authority", "h"}, {":path", "/b"}, {"x", "a\r\nTransfer-Encoding: chunked"}},
		"line's end in a name":   {{":method", "GET"}, {":scheme", "http"}, {":authority", "h"}, {":path", "/b"}, {"x: a\r\ny", "b"}},
		"line's end in the path": {{":method", "GET"}, {":scheme", "http"}, {":authority", "h"}, {":path", "/b HTTP/1.1\r\nX: y"}},
		"space in the path":      {{":method", "GET"}, {":scheme", "http"}, {":authority", "h"}, {":path", "/b HTTP/1.1"}},
		"space in the query":     {{":method", "GET"}, {":scheme", "http"}, {":authority", "h"}, {":path", "/b?x HTTP/1.0"}},
		"space in the method":    {{":method", "GET /b HTTP/1.1\r\nX:"}, {":scheme", "http"}, {":authority", "h"}, {":path", "/b"}},
		"line's end in the host": {{":method", "GET"}, {":scheme", "http"}, {":authority", "h\r\nX: y"}, {":path", "/b"}},
		"coding":                 {{":method", "POST"}, {":scheme", "http"}, {":authority", "h"}, {":path", "/b"}, {"transfer-encoding", "chunked"}},
		"connection":             {{":method", "GET"}, {":scheme", "http"}, {":authority", "h"}, {":path", "/b"}, {"connection", "x"}},
		"wrong length":           {{":method", "POST"}, {":scheme", "http"}, {":authority", "h"}, {":path", "/b"}, {"content-length", "10"}},
		"upper case":             {{":method", "GET"}, {":scheme", "http"}, {":authority", "h"}, {":path", "/b"}, {"X-A", "b"}},
		"no path":                {{":method", "GET"}, {":scheme", "http"}, {":authority", "h"}},
		"path without slash":     {{":method", "GET"}, {":scheme", "http"}, {":authority", "h"}, {":path", "b"}},
		"two paths":              {{":method", "GET"}, {":scheme", "http"}, {":authority", "h"}, {":path", "/b"}, {":path", "/b"}},
		"pseudo-header late":     {{":method", "GET"}, {":scheme", "http"}, {":authority", "h"}, {"x", "y"}, {":path", "/b"}},
		"two hosts":              {{":method", "GET"}, {":scheme", "http"}, {":authority", "a"}, {"host", "b"}, {":path", "/%zz"}},
	} {
		status, ended := f.askHTTP2(fields)
		if !ended && (status < "400" || status > "499") {
			t.Errorf("%s: %q", name, status)
		}
	}
}

// TestManyStreams: clients that leave in the midst harm no other stream of the connection.
func TestManyStreams(t *testing.T) {
	f := newPlane(t, Options{})
	cert, pool := newCertificate(t, "m.example")
	f.serve("b", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})
	c := one("https", 443, "b")
	c.Listeners[0].Protocol, c.Listeners[0].Certificates = route.HTTPS, []*tls.Certificate{cert}
	f.apply(c)
	client := f.client(443, pool, true)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for k := range 12 {
				ctx, cancel := context.WithCancel(context.Background())
				text := strings.Repeat(fmt.Sprintf("%d-%d ", i, k), 1+(k*k*k*100)%20000)
				r, _ := http.NewRequestWithContext(ctx, "POST", "https://m.example/b", strings.NewReader(text))
				answer, err := client.Do(r)
				if err != nil {
					t.Error(err)
					cancel()
					continue
				}
				if (i+k)%3 == 0 {
					cancel() // in the midst of the answer
				}
				got, err := io.ReadAll(answer.Body)
				if (i+k)%3 != 0 && (err != nil || string(got) != text) {
					t.Errorf("%d of %d bytes came back, %v", len(got), len(text), err)
				}
				_ = answer.Body.Close()
				cancel()
			}
		})
	}
	wg.Wait()
}
