// Package apitest is a real API server for tests: on the memory store, over
// in-memory connections, so that a component test takes milliseconds and runs
// in fake time inside testing/synctest. It writes nothing outside the process.
package apitest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"net"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/storage"
	"knarr/internal/memnet"
	"knarr/internal/run"
)

// A Server is a running API server.
type Server struct {
	*apiserver.Server
	listener *memnet.Listener
	loopback *memnet.Loopback
}

// signingKey is made once: making keys is the slowest part of a start.
var signingKey = sync.OnceValues(func() (*ecdsa.PrivateKey, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
})

// New starts an API server that ends with the test, and waits until it is
// ready. change may set more of its Config. Inside a synctest bubble call Stop before the bubble's function
// returns; elsewhere the test's cleanup does.
func New(t testing.TB, change ...func(*apiserver.Config)) (s *Server, stop func()) {
	t.Helper()
	key, err := signingKey()
	if err != nil {
		t.Fatal(err)
	}
	store := storage.NewMemory()
	cfg := apiserver.Config{Store: store, ServiceAccountKey: key}
	for _, c := range change {
		c(&cfg)
	}
	api, err := apiserver.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s = &Server{api, memnet.Listen(), memnet.NewLoopback()}
	ctx, cancel := context.WithCancel(context.Background())
	var wg run.Group
	wg.Go("API server", func() {
		if err := run.Catch("API server", func() error { return api.Run(ctx) }); err != nil {
			t.Error(err)
		}
	})
	wg.Go("API server: serve this process", func() {
		if err := run.Catch("API server: serve this process", func() error { return api.ServeLoopback(ctx, s.loopback) }); err != nil {
			t.Error(err)
		}
	})
	wg.Go("API server: serve", func() {
		if err := run.Catch("API server: serve", func() error { return api.Serve(ctx, s.listener, nil) }); err != nil {
			t.Error(err)
		}
	})
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			s.listener.Close()
			s.loopback.Close()
			wg.Wait()
			store.Close()
		})
	}
	t.Cleanup(stop)
	<-api.Started()
	return s, stop
}

// Config reaches the server as a user, by default a cluster administrator: clients
// without a connection, and whoever wants one by Dial.
func (s *Server) Config(as ...user.Info) *rest.Config {
	var who user.Info = &user.DefaultInfo{Name: "system:admin", Groups: []string{user.SystemPrivilegedGroup}}
	if len(as) > 0 {
		who = as[0]
	}
	return &rest.Config{
		Host: "http://apiserver", QPS: -1, Transport: s.loopback.As(who),
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.listener.DialAs(ctx, who) },
		ContentConfig: rest.ContentConfig{
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
			ContentType:        "application/vnd.kubernetes.protobuf",
		},
	}
}

// Client is a clientset over Config.
func (s *Server) Client(t testing.TB, as ...user.Info) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(s.Config(as...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
