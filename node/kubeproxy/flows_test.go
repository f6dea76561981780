package kubeproxy

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubeproxy/conntrack"
)

// TestFlowsOfManyAddresses: a Service's addresses share what is known of its endpoints, of
// which it may have as many.
func TestFlowsOfManyAddresses(t *testing.T) {
	const many = 20_000
	now := Rules{Fronts: map[Front]Target{}, Pools: map[string]Pool{}}
	var eps []netip.AddrPort
	for i := range many {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		eps = append(eps, netip.AddrPortFrom(a, 53))
		now.Fronts[Front{a, Port{corev1.ProtocolUDP, 53}}] = Target{Pool: "all", Inside: "local"}
	}
	now.Pools["all"] = Pool{Endpoints: eps[1:], Ending: eps[:1]}
	var stale conntrack.Stale
	AddFlows(&stale, false, Rules{}, now, Rules{})
	one, two := stale.Endpoints[eps[0]], stale.Endpoints[eps[1]]
	if len(stale.Endpoints) != many || len(one) != many || !one[eps[0]] {
		t.Fatalf("%d fronts, %d endpoints of one", len(stale.Endpoints), len(one))
	}
	if fmt.Sprintf("%p", one) != fmt.Sprintf("%p", two) {
		t.Error("each front has a map of its own")
	}
}
