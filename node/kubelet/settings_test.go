package kubelet

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/server"
)

// TestManifestURL: the pods of a URL run, whatever was wrong between, and go with it.
func TestManifestURL(t *testing.T) {
	const pod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q},"spec":{"containers":[{"name":%q,"image":"img:1"}]}}`
	var body atomic.Value
	body.Store(fmt.Sprintf(pod, "first", "first"))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Token") != "secret" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, body.Load().(string))
	}))
	defer srv.Close()
	n := newNode(t)
	n.config = func(c *Config) {
		c.Settings.StaticPodURL = srv.URL
		c.Settings.StaticPodURLHeader = map[string][]string{"X-Token": {"secret"}}
		c.Settings.HTTPCheckFrequency = metav1.Duration{Duration: 10 * time.Millisecond}
	}
	n.start()
	running := func(want ...string) func() bool {
		return func() bool { return slices.Equal(n.rt.Running(), want) }
	}
	n.until("the first pod", running("first"))
	for _, w := range n.k.all() {
		if source := w.shown.Load().pod.Annotations[annConfigSource]; source != "http" {
			t.Errorf("source %q", source)
		}
	}
	body.Store("{") // half an answer changes nothing
	body.Store(`{"kind":"PodList","apiVersion":"v1","items":[` + fmt.Sprintf(pod, "a", "a") + "," + fmt.Sprintf(pod, "b", "b") + `,{"metadata":{"name":"empty"}}]}`)
	n.until("the list in place of the first", running("a", "b"))
}

func TestDecodeManifests(t *testing.T) {
	for body, want := range map[string]string{
		"{":                                    "did not find expected",
		`{"kind":"Service","apiVersion":"v1"}`: `"Service" is neither Pod nor PodList`,
		`{"kind":"Pod"}`:                       "Object 'apiVersion' is missing",
		`{"kind":"PodList","apiVersion":"v2"}`: `no kind "PodList" is registered for version "v2"`,
		`{"kind":"Pod","apiVersion":"v1"}`:     "invalid pod: name is needed for the pod",
		`{"kind":"PodList","apiVersion":"v1","items":[{}]}`: "invalid pod: name is needed for the pod",
	} {
		if _, err := decodeManifests([]byte(body), "http://x", "n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
	}
	if files, err := decodeManifests([]byte(`{"kind":"PodList","apiVersion":"v1"}`), "http://x", "n"); err != nil || files == nil || len(files) > 0 {
		t.Errorf("an empty list: %v, %v", files, err)
	}
}

func TestKernelDefaults(t *testing.T) {
	root := t.TempDir()
	for name, v := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "0", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(v+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := kernelDefaults(root); err == nil || err.Error() != "invalid kernel flag: kernel/panic, expected value: 10, actual value: 0; sysctl -w kernel.panic=10" {
		t.Error(err)
	}
}

// TestConfigz: what others read is what acts, in upstream's form.
func TestConfigz(t *testing.T) {
	n := newNode(t)
	n.config = func(c *Config) {
		c.Settings.MaxPods, c.Settings.PodsPerCore = 7, 3
		c.ClusterDomain, c.Healthz = "x.test", "127.0.0.1:0"
		c.Settings.StaticPodURLHeader = map[string][]string{"X-Two": {"1", "2"}}
	}
	n.start()
	n.until("the start", func() bool { return n.k.runtimeUp.Load() })
	b, err := json.Marshal(host{n.k}.Configz())
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Kubeletconfig configuration.Settings }
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	s := got.Kubeletconfig
	if s.Kind != "KubeletConfiguration" || s.MaxPods != 7 || s.PodsPerCore != 3 || s.ClusterDomain != "x.test" || *s.ImageGCHighThresholdPercent != 100 || s.CgroupRoot != "-" ||
		!slices.Equal(s.StaticPodURLHeader["X-Two"], []string{"1", "2"}) {
		t.Errorf("%s", b)
	}
}

// TestPages: those about the program are there as far as their features are on, and a kubelet
// that knows of no flags shows none.
func TestPages(t *testing.T) {
	flags := func() map[string]string { return map[string]string{"v": "2"} }
	for name, c := range map[string]struct {
		gates          map[string]bool
		flags          func() map[string]string
		flagz, statusz bool
	}{
		"by default":      {nil, flags, true, true},
		"no flags":        {nil, nil, false, true},
		"flagz is off":    {map[string]bool{"ComponentFlagz": false}, flags, false, true},
		"statusz is off":  {map[string]bool{"ComponentStatusz": false}, flags, true, false},
		"all beta is off": {map[string]bool{"AllBeta": false}, flags, false, false},
	} {
		k := &Kubelet{cfg: Config{Settings: &configuration.Settings{FeatureGates: c.gates}, Flags: c.flags}}
		if got := (host{k}).Pages(); (got.Flags != nil) != c.flagz || got.Status != c.statusz {
			t.Errorf("%s: flagz %v, statusz %v", name, got.Flags != nil, got.Status)
		}
	}
}

// TestSystemLogs: queries for logs of the node are read where the settings let them.
func TestSystemLogs(t *testing.T) {
	for on, want := range map[bool]int{true: http.StatusBadRequest, false: http.StatusOK} {
		n := newNode(t)
		n.config = func(c *Config) { c.Settings.EnableSystemLogQuery = new(on) }
		stop := n.start()
		w := httptest.NewRecorder()
		host{n.k}.SystemLogs().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?query", nil))
		if w.Code != want {
			t.Errorf("with queries %v: %d %s", on, w.Code, w.Body)
		}
		stop()
	}
}

// TestRestrict: what is switched off is so for everybody, the rest stays.
func TestRestrict(t *testing.T) {
	all := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for _, c := range []struct {
		limits server.Limits
		path   string
		want   int
	}{
		{server.Limits{}, "/exec/a/b/c", 200},
		{server.Limits{NoDebugging: true}, "/exec/a/b/c", 405},
		{server.Limits{NoDebugging: true}, "/containerLogs/a/b/c", 405},
		{server.Limits{NoDebugging: true}, "/metrics", 200},
		{server.Limits{NoDebugging: true}, "/debug/pprof/heap", 405},
		{server.Limits{NoProfiles: true}, "/debug/pprof/", 405},
		{server.Limits{NoProfiles: true}, "/logs/", 200},
		{server.Limits{NoSystemLogs: true}, "/logs/", 405},
		{server.Limits{NoSystemLogs: true}, "/containerLogs/a/b/c", 200},
	} {
		w := httptest.NewRecorder()
		server.Restrict(all, c.limits).ServeHTTP(w, httptest.NewRequest(http.MethodGet, c.path, nil))
		if w.Code != c.want {
			t.Errorf("%+v %s: %d", c.limits, c.path, w.Code)
		}
	}
}
