package apiserver

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
		{"gathering", gatherStreams, func(l net.Listener) net.Listener { return l }},
		{"corking", gatherStreams, func(l net.Listener) net.Listener { return corking{l} }},
	} {
		var mu sync.Mutex
		wave := make(chan struct{}) // closed when watchers are sent something
		body := make([]byte, 64<<10)
		srv := &http.Server{TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}, Handler: onGrownStack(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/get":
				_, _ = w.Write(body[:2400])
			case "/list":
				for range 120 {
					_, _ = w.Write(body)
				}
			case "/watch":
				mu.Lock()
				next := wave
				mu.Unlock()
				for flush := http.NewResponseController(w); flush.Flush() == nil; {
					select {
					case <-r.Context().Done():
						return
					case <-next:
					}
					mu.Lock()
					next = wave
					mu.Unlock()
					_, _ = w.Write(body[:6000])
				}
			}
		}))}
		if err := how.prepare(srv); err != nil {
			b.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		go func() { _ = srv.ServeTLS(how.listen(l), "", "") }()
		transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		open := func(path string) io.ReadCloser {
			resp, err := (&http.Client{Transport: transport}).Get("https://" + l.Addr().String() + path)
			if err != nil {
				b.Fatal(err)
			}
			return resp.Body
		}
		read := func(path string, buf []byte) {
			r := open(path)
			defer r.Close()
			for _, err := r.Read(buf); err == nil; _, err = r.Read(buf) {
			}
		}
		measure := func(name string, do func()) {
			b.Run(name+"/"+how.name, func(b *testing.B) {
				began := cpu()
				for b.Loop() {
					do()
				}
				b.ReportMetric(float64((cpu()-began).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
		large := make([]byte, 256<<10)
		measure("list", func() { read("/list", large) })
		measure("get", func() {
			var all sync.WaitGroup
			for range 32 {
				all.Go(func() { read("/get", make([]byte, 4<<10)) })
			}
			all.Wait()
		})
		var told sync.WaitGroup
		for range 200 {
			r := open("/watch")
			defer r.Close()
			go func() {
				buf := make([]byte, 6000)
				for _, err := io.ReadFull(r, buf); err == nil; _, err = io.ReadFull(r, buf) {
					told.Done()
				}
			}()
		}
		measure("wave", func() {
			told.Add(200)
			mu.Lock()
			close(wave)
			wave = make(chan struct{})
			mu.Unlock()
			told.Wait()
		})
		transport.CloseIdleConnections()
		_ = srv.Close()
	}
}

// cpu is what this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
