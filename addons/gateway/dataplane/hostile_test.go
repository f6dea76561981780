package dataplane

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"knarr/addons/gateway/route"
)

// An attack is what hostile clients do until the test is over. Each of them counts what it
// has done, and what it was answered.
type attack struct {
	f    *fixture
	over context.Context
	// done is how often it was done, refused how often it was ended as it should.
	done, refused atomic.Int64
	// wrong is an answer that should not be.
	wrong atomic.Pointer[string]
}

// dial is a connection that ends with the test; nil once that is over.
func (a *attack) dial(port int) net.Conn {
	conn, err := net.Dial("tcp", a.f.at(port))
	if err != nil || a.over.Err() != nil {
		if err == nil {
			_ = conn.Close()
		}
		return nil
	}
	context.AfterFunc(a.over, func() { _ = conn.Close() })
	return conn
}

// drip sends heads a byte at a time, on so many connections by turns.
func (a *attack) drip() {
	const connections = 400
	head := "GET /good HTTP/1.1\r\nHost: h\r\nX-Slow: " + strings.Repeat("x", 4000)
	open, sent := make([]net.Conn, connections), make([]int, connections)
	for a.over.Err() == nil {
		for i := range open {
			if open[i] == nil {
				if open[i] = a.dial(80); open[i] == nil {
					return
				}
				sent[i] = 0
			}
			at := sent[i] % len(head)
			if _, err := io.WriteString(open[i], head[at:at+1]); err != nil {
				_ = open[i].Close()
				open[i] = nil
				a.refused.Add(1)
			}
			sent[i]++
		}
		a.done.Add(1)
	}
}

// flood sends a body that never ends to a backend that reads nothing of it.
func (a *attack) flood() {
	const connections = 30
	chunk := "8000\r\n" + strings.Repeat("y", 0x8000) + "\r\n"
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			conn := a.dial(80)
			if conn == nil {
				return
			}
			_, _ = io.WriteString(conn, "POST /hang HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
			for {
				a.done.Add(1)
				if _, err := io.WriteString(conn, chunk); err != nil {
					return
				}
			}
		})
	}
	all.Wait()
}

// hold opens connections, sends the same on each, and waits.
func (a *attack) hold(port int, sent string) {
	const connections = 100
	for range connections {
		conn := a.dial(port)
		if conn == nil {
			return
		}
		_, _ = io.WriteString(conn, sent)
		a.done.Add(1)
	}
	<-a.over.Done()
}

// ask asks routes whose backends close early or answer garbage: 502, each time.
func (a *attack) ask(paths ...string) {
	for {
		for _, path := range paths {
			conn := a.dial(80)
			if conn == nil {
				return
			}
			_, _ = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			_ = conn.Close()
			if a.over.Err() != nil {
				return
			}
			if a.done.Add(1); err != nil || answer.StatusCode != http.StatusBadGateway && answer.StatusCode != http.StatusServiceUnavailable {
				a.wrong.CompareAndSwap(nil, new(fmt.Sprint(path, ": ", answer, " ", err)))
			} else {
				a.refused.Add(1)
			}
		}
	}
}

// floods is how many connections of HTTP/2 are abused in one way.
const floods = 30

// frames speaks HTTP/2 badly, on one connection after the other: send is called with the
// numbers of streams until it fails, while everything that comes is read, if it is to be.
func (a *attack) frames(reads bool, send func(f *framer, id uint32) error, settings ...http2.Setting) {
	for connections := 0; ; connections++ {
		if connections == floods {
			<-a.over.Done() // enough: what it costs is this machine's time too
		}
		conn := a.dial(80)
		if conn == nil {
			return
		}
		f := newFramer(conn, settings...)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for reads {
				frame, err := f.ReadFrame()
				if err != nil {
					return
				}
				if g, ok := frame.(*http2.GoAwayFrame); ok && g.ErrCode != http2.ErrCodeNo {
					a.refused.Add(1)
				}
			}
		}()
		for id := uint32(1); id < 1<<30 && send(f, id) == nil; id += 2 {
			a.done.Add(1)
		}
		<-ended
		_ = conn.Close()
	}
}

// attack begins all attacks, which go on until the test is over.
func (f *fixture) attack() (attacks map[string]*attack) {
	over, end := context.WithCancel(f.t.Context())
	var all sync.WaitGroup
	f.t.Cleanup(func() { end(); all.Wait() })
	attacks = map[string]*attack{}
	begin := func(name string, of func(a *attack)) {
		a := &attack{f: f, over: over}
		attacks[name] = a
		all.Go(func() { of(a) })
	}
	begin("slow heads", (*attack).drip)
	begin("bodies without end", (*attack).flood)
	begin("backends that hang", func(a *attack) { a.hold(80, "GET /hang HTTP/1.1\r\nHost: h\r\n\r\n") })
	begin("handshakes without end", func(a *attack) { a.hold(443, "\x16\x03\x01\x02\x00\x01\x00\x01") })
	begin("bad backends", func(a *attack) { a.ask("/closes", "/garbage") })
	begin("rapid reset", func(a *attack) {
		a.frames(true, func(f *framer, id uint32) error {
			if err := f.ask(id, "/hang", true); err != nil {
				return err
			}
			return f.WriteRSTStream(id, http2.ErrCodeCancel)
		})
	})
	begin("too many streams", func(a *attack) {
		a.frames(true, func(f *framer, id uint32) error { return f.ask(id, "/hang", true) })
	})
	begin("windows of nothing", func(a *attack) {
		a.frames(true, func(f *framer, id uint32) error {
			if id > 2*250 {
				<-a.over.Done()
				return a.over.Err()
			}
			return f.ask(id, "/big", true)
		}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	})
	begin("pings, and nothing read", func(a *attack) {
		a.frames(false, func(f *framer, _ uint32) error { return f.WritePing(false, [8]byte{}) })
	})
	begin("heads without end", func(a *attack) {
		a.frames(true, func(f *framer, id uint32) error {
			a.done.Add(1)
			if err := f.ask(id, "/good", false); err != nil {
				return err
			}
			for {
				if err := f.WriteContinuation(id, false, f.field("x", strings.Repeat("z", 1000))); err != nil {
					return err
				}
			}
		})
	})
	return attacks
}

// TestHostile: beside clients and backends that do all this, other routes keep their
// answers, in every version of HTTP, and memory stays within its bounds.
func TestHostile(t *testing.T) {
	f := newPlane(t, Options{})
	cert, pool := newCertificate(t, "h")
	c := one("http", 80, "good", "hang", "closes", "garbage", "big")
	secure := c.Listeners[0]
	secure.Name, secure.Port, secure.PublicPort, secure.Protocol, secure.Certificates = "https", 443, 443, route.HTTPS, []*tls.Certificate{cert}
	c.Listeners = append(c.Listeners, secure)
	f.apply(c)
	f.serve("good", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "good %s", body)
	})
	f.serve("big", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	f.SetEndpoints("hang", []route.Endpoint{rude(t, "", true)})
	f.SetEndpoints("closes", []route.Endpoint{rude(t, "", false), rude(t, "HTTP/1.1 200 O", false)})
	f.SetEndpoints("garbage", []route.Endpoint{rude(t, "\x00\xffgarbage\r\n\r\n", false), rude(t, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", false)})
	before := held()

	attacks := f.attack()
	f.askGood(pool) // while they are at their worst
	t.Cleanup(func() {
		for name, a := range attacks {
			t.Logf("%s: %d times, ended %d times", name, a.done.Load(), a.refused.Load())
		}
	})
	// All of them are under way, and those that are to be refused have been.
	await(t, "the attacks", func() bool {
		for name, a := range attacks {
			switch {
			case a.done.Load() == 0, name == "handshakes without end" && a.done.Load() < 100, name == "windows of nothing" && a.done.Load() < 250:
				return false
			case name == "rapid reset" || name == "too many streams" || name == "heads without end" || name == "bad backends":
				if a.refused.Load() == 0 {
					return false
				}
			}
		}
		return true
	})
	f.askGood(pool)
	if grown := held() - before; grown > 128<<20 {
		t.Errorf("%d MB more are held", grown>>20)
	} else {
		t.Logf("%d kB more are held", grown>>10)
	}
	for name, a := range attacks {
		if wrong := a.wrong.Load(); wrong != nil {
			t.Errorf("%s: %s", name, *wrong)
		}
	}
}

// askGood asks the route that is to be unharmed, by each version of HTTP.
func (f *fixture) askGood(pool *x509.CertPool) {
	f.t.Helper()
	for _, kind := range []struct {
		name  string
		port  int
		http2 bool
	}{{"HTTP/1.1", 80, false}, {"HTTP/1.1 with TLS", 443, false}, {"HTTP/2", 443, true}} {
		client := f.client(kind.port, pool, kind.http2)
		client.Timeout = time.Minute
		scheme := map[int]string{80: "http", 443: "https"}[kind.port]
		for i := range 100 {
			if i%10 == 0 {
				client.CloseIdleConnections() // some by new connections
			}
			want := fmt.Sprint("good ", i)
			answer, err := client.Post(scheme+"://h/good", "text/plain", strings.NewReader(fmt.Sprint(i)))
			if err != nil {
				f.t.Fatalf("%s, request %d: %v", kind.name, i, err)
			}
			body, err := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			if answer.StatusCode != 200 || string(body) != want || err != nil {
				f.t.Fatalf("%s, request %d: %d %q %v", kind.name, i, answer.StatusCode, body, err)
			}
		}
	}
}

// await waits until something is so.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for end := time.After(2 * time.Minute); !so(); {
		select {
		case <-ticker.C:
		case <-end:
			t.Fatalf("%s: not so after two minutes", what)
		}
	}
}

// held is the memory in use, with the stacks.
func held() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// rude is a backend that answers a text, whatever it is asked, and closes the connection or
// keeps it without reading on.
func rude(t *testing.T, text string, stays bool) route.Endpoint {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		var open []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				for _, c := range open {
					_ = c.Close()
				}
				return
			}
			if stays {
				open = append(open, c)
				continue
			}
			go func() {
				defer c.Close()
				_, _ = c.Read(make([]byte, 1000))
				_, _ = io.WriteString(c, text)
			}()
		}
	}()
	return to(l.Addr().String())
}
