package apiserver

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"knarr/internal/memnet"
)

func TestHealth(t *testing.T) {
	s, stop := newServer(t)
	defer stop()
	var hooks string
	for name := range strings.FieldsSeq(`start-apiserver-admission-initializer generic-apiserver-start-informers storage-readiness
		start-apiextensions-informers start-apiextensions-controllers crd-informer-synced start-system-namespaces-controller
		start-cluster-authentication-info-controller rbac/bootstrap-roles scheduling/bootstrap-system-priority-classes
		priority-and-fairness-config-producer bootstrap-controller start-service-ip-repair-controllers
		priority-and-fairness-config-consumer start-kube-aggregator-informers apiservice-registration-controller
		apiservice-status-local-available-controller apiservice-status-remote-available-controller
		apiservice-discovery-controller kube-apiserver-autoregistration`) {
		hooks += "[+]poststarthook/" + name + " ok\n"
	}
	hooks += "[+]autoregister-completion ok\n[+]poststarthook/apiservice-openapi-controller ok\n[+]poststarthook/apiservice-openapiv3-controller ok\n"
	for _, c := range []struct {
		path, want string
		code       int
	}{
		{"/livez", "ok", 200},
		{"/livez?verbose", "[+]ping ok\n[+]log ok\n[+]etcd ok\n" + hooks + "livez check passed\n", 200},
		{"/healthz?verbose&exclude=etcd", "[+]ping ok\n[+]log ok\n[+]etcd excluded: ok\n" + hooks + "healthz check passed\n", 200},
		{"/readyz?verbose", "[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]etcd-readiness ok\n[+]informer-sync ok\n" + hooks + "[+]shutdown ok\nreadyz check passed\n", 200},
		{"/livez?verbose&exclude=b&exclude=a", "[+]ping ok\n[+]log ok\n[+]etcd ok\n" + hooks + "warn: some health checks cannot be excluded: no matches for \"a\", \"b\"\nlivez check passed\n", 200},
		{"/readyz/etcd", "ok", 200},
		{"/readyz/poststarthook/rbac/bootstrap-roles?verbose", "ok", 200},
		{"/livez/shutdown", "404 page not found\n", 404},
		{"/livez/etcd-readiness", "404 page not found\n", 404},
		{"/readyz/nope", "404 page not found\n", 404},
	} {
		if w := ask(s.Handler(), "GET", c.path, "root"); w.Code != c.code || w.Body.String() != c.want {
			t.Errorf("%s: %d %s\nwant %d %s", c.path, w.Code, w.Body, c.code, c.want)
		}
	}
	s.health.stopping.Store(true)
	w := ask(s.Handler(), "GET", "/readyz", "root")
	if want := "[-]shutdown failed: reason withheld\nreadyz check failed\n"; w.Code != 500 || !strings.HasSuffix(w.Body.String(), want) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask(s.Handler(), "GET", "/readyz/shutdown", "root"); w.Code != 500 || w.Body.String() != "internal server error: process is shutting down\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask(s.Handler(), "GET", "/livez", "root"); w.Code != 200 {
		t.Errorf("a server that is about to end is not alive: %s", w.Body)
	}
	if now := value(families(t, s, "/metrics/slis"), "kubernetes_healthcheck", map[string]string{"name": "shutdown", "type": "readyz"}); now != 0 {
		t.Errorf("shutdown: %v", now)
	}
	if n := value(families(t, s, "/metrics/slis"), "kubernetes_healthchecks_total", map[string]string{"name": "ping", "type": "readyz", "status": "success"}); n < 1 {
		t.Errorf("ping: %v", n)
	}
}

// The end: not ready first, then watches end cleanly, late requests are told to
// come again, those under way are answered.
func TestGracefulEnd(t *testing.T) {
	for name, serve := range map[string]func(context.Context, *Server) (http.RoundTripper, func() error){
		"connections": func(ctx context.Context, s *Server) (http.RoundTripper, func() error) {
			l := memnet.Listen()
			return &http.Transport{DialContext: l.Dial}, func() error { return s.Serve(ctx, l, nil) }
		},
		"this process": func(ctx context.Context, s *Server) (http.RoundTripper, func() error) {
			d := memnet.NewLoopback()
			return d.As(people["root"]), func() error { return s.ServeLoopback(ctx, d) }
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { gracefulEnd(t, serve) }) })
	}
}

func gracefulEnd(t *testing.T, serve func(context.Context, *Server) (http.RoundTripper, func() error)) {
	s, stop := newServer(t, func(c *Config) {
		c.ShutdownDelay, c.ShutdownSendRetryAfter = 5*time.Second, true
		c.Open = map[string]http.Handler{"/slow": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(8 * time.Second):
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, "done")
		})}
	})
	defer stop()
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	tr, run := serve(ctx, s)
	go func() { ended <- run() }()
	if tr, ok := tr.(*http.Transport); ok {
		defer tr.CloseIdleConnections()
	}
	get := func(path string) *http.Response {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		t.Cleanup(cancel)
		r, err := http.NewRequestWithContext(ctx, "GET", "http://x"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := tr.(*http.Transport); ok {
			r.Header.Set("Authorization", "Bearer root")
		}
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return resp
	}
	text := func(r *http.Response) string {
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error("not a clean end:", err)
		}
		return string(b)
	}
	watch := get("/api/v1/namespaces?watch=1")
	slow := make(chan string, 1)
	go func() { slow <- text(get("/slow")) }()
	synctest.Wait()
	end()
	<-time.After(time.Second) // of the bubble's clock: the delay is under way
	if r := get("/readyz"); r.StatusCode != 500 || !strings.Contains(text(r), "[-]shutdown failed") {
		t.Errorf("/readyz: %d", r.StatusCode)
	}
	if r := get("/api/v1/namespaces"); r.StatusCode != 200 {
		t.Errorf("during the delay: %d", r.StatusCode)
	} else {
		text(r)
	}
	text(watch) // ends
	synctest.Wait()
	r := get("/api/v1/namespaces")
	if body := text(r); r.StatusCode != 429 || r.Header.Get("Retry-After") != "5" || body != "The apiserver is shutting down, please try again later.\n" {
		t.Errorf("late: %d %v %s", r.StatusCode, r.Header, body)
	}
	if got := <-slow; got != "done" {
		t.Errorf("the request under way got %q", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
