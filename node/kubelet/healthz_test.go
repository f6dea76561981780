package kubelet

import (
	"io"
	"net"
	"net/http"
	"testing"

	"knarr/node/kubelet/podtest"
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
