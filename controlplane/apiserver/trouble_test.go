package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"knarr/controlplane/apiserver/storage"
)

// silent is a store that answers nobody while it is mute, as an etcd does whose
// machine is frozen; what waits is answered once it speaks again.
type silent struct {
	*storage.Memory
	stopped atomic.Pointer[chan struct{}]
}

func (s *silent) stopAnswering() (speak func()) {
	c := make(chan struct{})
	s.stopped.Store(&c)
	return func() { s.stopped.Store(nil); close(c) }
}

func (s *silent) wait(ctx context.Context) error {
	c := s.stopped.Load()
	if c == nil {
		return nil
	}
	select {
	case <-*c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *silent) Revision(ctx context.Context) (int64, error) {
	if err := s.wait(ctx); err != nil {
		return 0, err
	}
	return s.Memory.Revision(ctx)
}

func (s *silent) Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, *storage.KV, bool, error) {
	if err := s.wait(ctx); err != nil {
		return 0, nil, false, err
	}
	return s.Memory.Put(ctx, key, value, expect, ttl)
}

// While its store is silent, requests wait for it as long as upstream's do, and
// say what upstream's say; afterwards everything goes on.
func TestSilentStore(t *testing.T) {
	const maps, created = "/api/v1/namespaces/default/configmaps", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`
	cases := []struct {
		name, method, path, body string
		silence                  time.Duration
		code                     int
		says                     string
		after                    time.Duration // the answer comes; 0 is when the store speaks
	}{
		{"a read waits", "GET", "/api/v1/namespaces/default", "", 8 * time.Second, 200, `"name":"default"`, 0},
		{"a list waits", "GET", maps, "", 8 * time.Second, 200, `"items":[`, 0},
		{"a read that waits for nobody", "GET", "/api/v1/namespaces/default?resourceVersion=0", "", 30 * time.Second, 200, `"name":"default"`, time.Nanosecond},
		{"a write waits", "POST", maps, created, 30 * time.Second, 201, `"name":"a"`, 0},
		{"a write gives up", "POST", maps, created, 50 * time.Second, 504, `"message":"Timeout: request did not complete within requested timeout - context deadline exceeded","reason":"Timeout"`, 34 * time.Second},
		{"a write gives up when told to", "POST", maps + "?timeout=5s", created, 50 * time.Second, 504, `"message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout"`, 5 * time.Second},
		{"a watch gives up when told to", "GET", maps + "?watch=1&timeoutSeconds=3", "", 50 * time.Second, 200, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"context deadline exceeded","reason":"InternalError","code":500}}`, 3 * time.Second},
		{"a token's account is not said to be gone", "POST", "/api/v1/namespaces/default/serviceaccounts/none/token", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1"}`, 50 * time.Second, 504, `"reason":"Timeout"`, 10 * time.Second},
		{"readiness", "GET", "/readyz/etcd", "", 30 * time.Second, 500, "internal server error: error getting data from etcd: context deadline exceeded", 2 * time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &silent{Memory: storage.NewMemory()}
				s, stop := newServer(t, func(c *Config) { c.Store = store })
				defer stop()
				speak := store.stopAnswering()
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				time.AfterFunc(c.silence, speak)
				req := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)).WithContext(ctx)
				req.Header.Set("Authorization", "Bearer root")
				req.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				s.Handler().ServeHTTP(w, req)
				want := c.after
				if want == 0 {
					want = c.silence
				}
				if took := time.Since(began).Round(time.Second); took != want.Round(time.Second) {
					t.Errorf("answered after %s, want %s", took, want)
				}
				if w.Code != c.code || !strings.Contains(w.Body.String(), c.says) {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				<-time.After(time.Until(began.Add(c.silence + time.Second)))
				if again := ask(s.Handler(), http.MethodGet, maps, "root"); again.Code != 200 {
					t.Errorf("afterwards: %d %s", again.Code, again.Body)
				}
			})
		})
	}
}

// overloaded is a store that fails its first writes, as an etcd does whose disk or
// processor is too busy.
type overloaded struct {
	*storage.Memory
	left atomic.Int32
	slow time.Duration // what a failure takes
}

func (s *overloaded) Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, *storage.KV, bool, error) {
	if s.left.Add(-1) >= 0 {
		<-time.After(s.slow)
		return 0, nil, false, errors.New("etcdserver: request timed out")
	}
	return s.Memory.Put(ctx, key, value, expect, ttl)
}

// A store that fails the first writes of all delays a server; one that goes on
// failing ends it.
func TestOverloadedStoreAtStart(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		failures int32
		slow     time.Duration
		starts   bool
	}{{3, 0, true}, {3, 2 * bootstrapTimeout, true}, {1 << 30, 0, false}} {
		synctest.Test(t, func(t *testing.T) {
			store := &overloaded{Memory: storage.NewMemory(), slow: c.slow}
			store.left.Store(c.failures)
			s, err := New(Config{Store: store, ServiceAccountKey: key})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			select {
			case <-s.Started():
				if !c.starts {
					t.Error("the server started without its first objects")
				}
				cancel()
				<-ended
			case err := <-ended:
				if c.starts || err == nil {
					t.Errorf("%d failures: the server ended: %v", c.failures, err)
				}
			}
			cancel()
			store.Close()
		})
	}
}
