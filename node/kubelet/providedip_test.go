package kubelet

import (
	"net"
	"testing"
)

// TestProvidedIPs: only an address that somebody chose is one that a cloud controller
// must find.
func TestProvidedIPs(t *testing.T) {
	ips := []net.IP{net.ParseIP("10.0.0.1"), net.ParseIP("fd00::1")}
	for _, c := range []struct {
		external, given bool
		want            string
	}{
		{false, false, ""}, {false, true, ""}, {true, false, ""}, {true, true, "10.0.0.1,fd00::1"},
	} {
		k := &Kubelet{cfg: Config{ExternalCloud: c.external, NodeIPsGiven: c.given, NodeIPs: ips}}
		if got := k.providedIPs(); got != c.want {
			t.Errorf("external %t, given %t: %q", c.external, c.given, got)
		}
	}
}
