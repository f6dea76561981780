package controllermanager

import (
	"testing"

	"k8s.io/client-go/rest"
)

// TestReach: a controller sends as many requests as it may, and any number by default.
func TestReach(t *testing.T) {
	for _, tt := range []struct {
		cfg   Config
		qps   float32
		burst int
	}{
		{Config{}, -1, 0},
		{Config{QPS: 50, Burst: 100}, 50, 100},
	} {
		tt.cfg.Kube = &rest.Config{QPS: 7}
		tt.cfg.ClientFor = func(string) *rest.Config { return &rest.Config{QPS: 9} }
		for _, account := range []string{"", "job-controller"} {
			if got := (&term{Config: tt.cfg, account: account}).reach(); got.QPS != tt.qps || got.Burst != tt.burst {
				t.Errorf("%v %d as %q: %v %d", tt.qps, tt.burst, account, got.QPS, got.Burst)
			}
		}
	}
}
