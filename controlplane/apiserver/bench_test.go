package apiserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/authz"
	"knarr/internal/memnet"
)

type nothing struct{ h http.Header }

func (n nothing) Header() http.Header         { return n.h }
func (n nothing) Write(p []byte) (int, error) { return len(p), nil }
func (n nothing) WriteHeader(int)             {}

func benchServer(b *testing.B) *Server {
	b.Helper()
	s, stop := newServer(b, func(c *Config) { c.MaxReads, c.MaxWrites = 400, 200 })
	b.Cleanup(stop)
	for _, o := range [][2]string{
		{"/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"default"}}`},
		{"/api/v1/namespaces/default/pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`},
		{"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"bob"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},` +
			`"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"bob"}]}`},
	} {
		benchPost(b, s, o[0], o[1])
	}
	if err := s.Cache().Sync(context.Background()); err != nil {
		b.Fatal(err)
	}
	return s
}

func benchPost(b *testing.B, s *Server, path, body string) {
	b.Helper()
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer root")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	if w.Code != 201 {
		b.Fatalf("%d %s", w.Code, w.Body)
	}
}

// The filters alone, around a handler that does nothing.
func BenchmarkChain(b *testing.B) {
	s := benchServer(b)
	h := s.chain(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := httptest.NewRequest("GET", "/api/v1/namespaces/default/pods/p", nil)
	b.ReportAllocs()
	for b.Loop() {
		r.Header["Authorization"] = []string{"Bearer bob"}
		h.ServeHTTP(nothing{http.Header{}}, r)
	}
}

// RBAC's answer to a question that was asked before.
func BenchmarkAuthorize(b *testing.B) {
	s := benchServer(b)
	a := &authz.Attributes{User: &user.DefaultInfo{Name: "bob", Groups: []string{user.AllAuthenticated}}, Verb: "get", Namespace: "default",
		Version: "v1", Resource: "pods", Name: "p", IsResource: true}
	b.ReportAllocs()
	for b.Loop() {
		if ok, _ := authz.Allows(context.Background(), s.authz, a); !ok {
			b.Fatal("refused")
		}
	}
}

// A get of one pod from within the process, client included.
func BenchmarkGetPod(b *testing.B) {
	s := benchServer(b)
	d := memnet.NewLoopback()
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.ServeLoopback(ctx, d) }()
	defer func() {
		end()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}()
	tr := d.As(people["bob"])
	r, err := http.NewRequestWithContext(context.Background(), "GET", "http://x/api/v1/namespaces/default/pods/p?resourceVersion=0", nil)
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Accept", "application/vnd.kubernetes.protobuf")
	buf := make([]byte, 16<<10)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := tr.RoundTrip(r)
		if err != nil || resp.StatusCode != 200 {
			b.Fatal(err, resp)
		}
		for {
			if _, err := resp.Body.Read(buf); err != nil {
				break
			}
		}
		resp.Body.Close()
	}
}

// A write through everything but the store: what admission costs is in it.
func benchmarkDryCreate(b *testing.B, path, body string) {
	s := benchServer(b)
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest("POST", path+"?dryRun=All", strings.NewReader(body))
		r.Header["Authorization"] = []string{"Bearer root"}
		s.Handler().ServeHTTP(nothing{http.Header{}}, r)
	}
}

func BenchmarkDryCreatePod(b *testing.B) {
	benchmarkDryCreate(b, "/api/v1/namespaces/default/pods", `{"metadata":{"name":"q"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
}

func BenchmarkDryCreateConfigMap(b *testing.B) {
	benchmarkDryCreate(b, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"q"},"data":{"k":"v"}}`)
}
