package transport

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A benchServer answers lists and gets, and sends its watchers something at each
// wave.
type benchServer struct {
	mu   sync.Mutex
	wave chan struct{} // closed when watchers are sent something
	body []byte
}

func (s *benchServer) nextWave() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wave
}

func (s *benchServer) startWave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.wave)
	s.wave = make(chan struct{})
}

func (s *benchServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/get":
		_, _ = w.Write(s.body[:2400])
	case "/list":
		for range 120 {
			_, _ = w.Write(s.body)
		}
	case "/watch":
		next := s.nextWave()
		for flush := http.NewResponseController(w); flush.Flush() == nil; {
			select {
			case <-r.Context().Done():
				return
			case <-next:
			}
			next = s.nextWave()
			_, _ = w.Write(s.body[:6000])
		}
	}
}

// A benchClient is one HTTP/2 connection to a benchServer.
type benchClient struct {
	*testing.B
	transport *http.Transport
	url       string
}

func (c *benchClient) open(path string) io.ReadCloser {
	resp, err := (&http.Client{Transport: c.transport}).Get(c.url + path)
	if err != nil {
		c.Fatal(err)
	}
	return resp.Body
}

func (c *benchClient) read(path string, buf []byte) {
	r := c.open(path)
	defer r.Close()
	for _, err := r.Read(buf); err == nil; _, err = r.Read(buf) {
	}
}

// What HTTP/2 over TLS costs, client included: a list of 7.8 MB, 32 objects of
// 2.4 KB, and 200 watchers of one connection that are sent 6 KB each.
func BenchmarkHTTP2(b *testing.B) {
	cert := certificate()
	for _, how := range []struct {
		name    string
		prepare func(*http.Server) error
		listen  func(net.Listener) net.Listener
	}{
		{"plain", func(*http.Server) error { return nil }, func(l net.Listener) net.Listener { return l }},
		{"batched", batchStreams, func(l net.Listener) net.Listener { return l }},
		{"coalesced", batchStreams, func(l net.Listener) net.Listener { return coalescingListener{l} }},
	} {
		s := &benchServer{wave: make(chan struct{}), body: make([]byte, 64<<10)}
		srv := &http.Server{TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}, Handler: GrowStack(s)}
		if err := how.prepare(srv); err != nil {
			b.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		go func() { _ = srv.ServeTLS(how.listen(l), "", "") }()
		transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		c := &benchClient{b, transport, "https://" + l.Addr().String()}
		measureHTTP2(c, s, how.name)
		transport.CloseIdleConnections()
		_ = srv.Close()
	}
}

func measureHTTP2(c *benchClient, s *benchServer, how string) {
	measure := func(name string, do func()) {
		c.Run(name+"/"+how, func(b *testing.B) {
			began := cpu()
			for b.Loop() {
				do()
			}
			b.ReportMetric(float64((cpu()-began).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
	large := make([]byte, 256<<10)
	measure("list", func() { c.read("/list", large) })
	measure("get", func() {
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() { c.read("/get", make([]byte, 4<<10)) })
		}
		all.Wait()
	})
	var received sync.WaitGroup
	for range 200 {
		r := c.open("/watch")
		defer r.Close()
		go func() {
			buf := make([]byte, 6000)
			for _, err := io.ReadFull(r, buf); err == nil; _, err = io.ReadFull(r, buf) {
				received.Done()
			}
		}()
	}
	measure("wave", func() {
		received.Add(200)
		s.startWave()
		received.Wait()
	})
}

// cpu is what this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
