package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
)

// certificate is that of the library's own tests.
func certificate() tls.Certificate {
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	return s.TLS.Certificates[0]
}

// joined are the two ends of a connection of TLS, the server's one batchingConn.
func joined(t *testing.T, cert tls.Certificate) (server *batchingConn, client *tls.Conn) {
	t.Helper()
	near, far := net.Pipe()
	s := tls.Server(&coalescingConn{Conn: near}, &tls.Config{Certificates: []tls.Certificate{cert}})
	client = tls.Client(far, &tls.Config{InsecureSkipVerify: true})
	met := make(chan error, 1)
	go func() { met <- s.Handshake() }()
	if err := errors.Join(client.Handshake(), <-met); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.NetConn().Close() })
	return newBatchingConn(s), client
}

// What was written arrives as it was, and also what was when the connection is
// closed.
func TestBatchesArrive(t *testing.T) {
	cert := certificate()
	synctest.Test(t, func(t *testing.T) {
		server, client := joined(t, cert)
		var want bytes.Buffer
		go func() {
			for i := range 1000 {
				b := bytes.Repeat([]byte{byte(i)}, i)
				want.Write(b)
				if n, err := server.Write(b); n != i || err != nil {
					t.Errorf("write %d: %d, %v", i, n, err)
				}
			}
			server.Close()
		}()
		got, err := io.ReadAll(client)
		synctest.Wait()
		if err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%d bytes of %d arrived, or others: %v", len(got), want.Len(), err)
		}
		if _, err := server.Write([]byte("more")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a write after the end: %v", err)
		}
	})
}

// A client that does not read stops the writer, and does not stop the end.
func TestBatchesAreBounded(t *testing.T) {
	cert := certificate()
	synctest.Test(t, func(t *testing.T) {
		server, _ := joined(t, cert)
		frame := make([]byte, 16<<10)
		taken, failed := 0, make(chan error, 1)
		go func() {
			for {
				if _, err := server.Write(frame); err != nil {
					failed <- err
					return
				}
				taken += len(frame)
			}
		}()
		synctest.Wait()
		if most := 2 * (maxBatch + len(frame)); taken > most {
			t.Errorf("%d bytes wait for a client that does not read; %d are the most", taken, most)
		}
		began := time.Now()
		server.Close()
		if took := time.Since(began); took > closeTimeout+5*time.Second { // that of TLS to say goodbye
			t.Errorf("the end took %s", took)
		}
		if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed) {
			t.Errorf("the write ended with %v", err)
		}
	})
}

// A client that goes is told to the writer.
func TestBatchesBreak(t *testing.T) {
	cert := certificate()
	synctest.Test(t, func(t *testing.T) {
		server, client := joined(t, cert)
		client.NetConn().Close()
		server.Write([]byte("lost"))
		synctest.Wait()
		if _, err := server.Write([]byte("more")); err == nil {
			t.Error("a write to a closed connection succeeds")
		}
		server.Close()
	})
}

// HTTP/2 is spoken over connections that batch writes; requests have what the
// connection's context says.
func TestHTTP2Batches(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	type key struct{}
	srv := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate()}},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, key{}, user.AllAuthenticated)
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.Proto, " ", r.TLS != nil, " ", r.Context().Value(key{}))
		}),
	}
	if err := batchStreams(srv); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.ServeTLS(l, "", "") }()
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := client.Get("https://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if want := "HTTP/2.0 true " + user.AllAuthenticated; string(got) != want {
		t.Errorf("answered %q, want %q", got, want)
	}
	client.CloseIdleConnections()
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// A client that takes nothing for a while loses its connection; one that takes a
// little now and then keeps it.
func TestBatchesStall(t *testing.T) {
	cert := certificate()
	for _, reads := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server, client := joined(t, cert)
			const size = 64 << 10
			began := time.Now()
			if _, err := server.Write(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			if reads {
				for taken := 0; taken < size; {
					time.Sleep(stallTimeout * 3 / 4)
					n, err := client.Read(make([]byte, 16<<10))
					if taken += n; err != nil {
						t.Fatalf("after %d bytes and %s: %v", taken, time.Since(began), err)
					}
				}
			}
			time.Sleep(stallTimeout + time.Second)
			if _, err := server.Write([]byte("more")); (err == nil) != reads {
				t.Errorf("a client that reads: %v; a write after %s: %v", reads, time.Since(began), err)
			}
			if !reads && !errors.Is(server.err, os.ErrDeadlineExceeded) {
				t.Errorf("the connection ended with %v", server.err)
			}
			client.NetConn().Close()
			server.Close()
		})
	}
}
