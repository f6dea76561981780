package kubelet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/server"
)

// TestHealthzPort: a port that is in use does not end the node, and is served
// on once it is free.
func TestHealthzPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	n.config = func(c *Config) { c.Healthz = taken.Addr().String() }
	defer n.start()()
	n.api.addPod(podtest.Pod("web", "a"))
	n.until("ready", n.ready("web"))
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	n.until("healthz answers", func() bool {
		res, err := http.Get("http://" + taken.Addr().String() + "/healthz")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode == http.StatusOK && string(b) == "ok"
	})
	if c := (Config{Listen: "-"}); true {
		_ = c.setDefaults()
		if c.Healthz != "-" {
			t.Errorf("a kubelet that does not serve answers on %s", c.Healthz)
		}
	}
	if c := (Config{}); true {
		_ = c.setDefaults()
		if c.Healthz != "127.0.0.1:10248" {
			t.Errorf("healthz is on %s, want the node itself alone", c.Healthz)
		}
	}
}

// TestHealth: a kubelet is well in upstream's words and by its checks, and not when its runtime
// lists no pods for five minutes, or when no device plugin can register.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := &listRuntime{}
		k := &Kubelet{runtime: r, metrics: newMetrics(), up: newGate()}
		k.health = k.newHealth()
		says := func(path, want string) {
			t.Helper()
			w := httptest.NewRecorder()
			if k.health.ServeHTTP(w, httptest.NewRequest("GET", path, nil)); w.Body.String() != want || strings.Contains(want, "failed") != (w.Code != http.StatusOK) {
				t.Errorf("%s: %d %q, want %q", path, w.Code, w.Body, want)
			}
		}
		const wrong = "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\n[+]device-plugin ok\nhealthz check failed\n"
		go k.followList(ctx)
		time.Sleep(time.Hour)
		says("/healthz", "ok") // no runtime yet
		k.up.open()
		time.Sleep(time.Minute)
		says("/healthz?verbose", "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\nhealthz check passed\n")
		r.hangs.Store(true)
		time.Sleep(4 * time.Minute)
		says("/healthz", "ok")
		time.Sleep(2 * time.Minute)
		says("/healthz", wrong)
		r.hangs.Store(false)
		time.Sleep(3 * time.Minute)
		says("/healthz", "ok")
		says("/healthz/syncloop", "ok")
		err := errors.New("no room")
		k.pluginsErr.Store(&err)
		says("/healthz", "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[-]device-plugin failed: reason withheld\nhealthz check failed\n")
		cancel()
	})
}

// TestListedNeedsWorkers: a list counts for nothing while nobody can get at the workers.
func TestListedNeedsWorkers(t *testing.T) {
	k := &Kubelet{metrics: newMetrics()}
	k.mu.Lock()
	done := make(chan struct{})
	go func() { defer close(done); k.listed() }()
	for range 1000 {
		runtime.Gosched()
	}
	if k.relisted.Load() != nil {
		t.Error("it counts while the workers are held")
	}
	k.mu.Unlock()
	<-done
	if k.relisted.Load() == nil {
		t.Error("it does not count")
	}
}

// TestHealthServed: the checks are at the kubelet's port, and their counts beside its metrics.
func TestHealthServed(t *testing.T) {
	n := newNode(t)
	n.start()
	n.until("device plugins", func() bool { return n.k.up.isOpen() })
	h := server.New(host{n.k}, nil)
	get := func(path string) string {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Body.String()
	}
	if got := get("/healthz?verbose"); !strings.Contains(got, "[+]syncloop ok\n[+]device-plugin ok\n") {
		t.Errorf("verbose: %q", got)
	}
	if got := get("/healthz/syncloop"); got != "ok" {
		t.Errorf("one check: %q", got)
	}
	slis := asked(t, n.k, "/metrics/slis")
	if total(slis["kubernetes_healthcheck"], "syncloop") != 1 || total(slis["kubernetes_healthchecks_total"], "success") != 4 {
		t.Errorf("indicators: %v", slis)
	}
}
