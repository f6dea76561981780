package kubeproxy

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Check writes all that the rules of Services may need into the network
// namespace of the calling thread, and says what the kernel refuses. It is for
// a namespace that ends afterwards.
func Check() error {
	k, err := newNFTables("knarr-check", []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/48")},
		netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"))
	if err != nil {
		return err
	}
	defer k.Close()
	r := plan(nil, nil, host{})
	for _, family := range []struct {
		v6                bool
		cluster, endpoint string
	}{{false, "10.43.0.1", "10.42.0.2"}, {true, "fd43::1", "fd42::2"}} {
		cluster, endpoint := netip.MustParseAddr(family.cluster), netip.MustParseAddr(family.endpoint)
		everywhere := netip.IPv4Unspecified()
		if family.v6 {
			everywhere = netip.IPv6Unspecified()
		}
		pool := family.cluster
		from := netip.PrefixFrom(endpoint, 16)
		r.Pools["from "+pool] = Pool{V6: family.v6, Ranges: []netip.Prefix{from.Masked()}}
		r.Pools[pool] = Pool{V6: family.v6, Endpoints: []netip.AddrPort{netip.AddrPortFrom(endpoint, 80)}, Affinity: corev1.DefaultClientIPServiceAffinitySeconds}
		r.Fronts[Front{cluster, Port{corev1.ProtocolTCP, 80}}] = Target{Pool: pool}
		r.Fronts[Front{cluster, Port{corev1.ProtocolUDP, 53}}] = Target{Reject: true}
		r.Fronts[Front{everywhere, Port{corev1.ProtocolTCP, 30000}}] = Target{Pool: pool, Masquerade: MasqueradeAll, Inside: pool}
		r.Fronts[Front{endpoint, Port{corev1.ProtocolTCP, 80}}] = Target{Pool: pool, Masquerade: MasqueradeAll, Firewall: "from " + pool}
		r.ClusterIPs[cluster], r.Hairpins[endpoint] = true, true
	}
	check := cache.NewObjectName(metav1.NamespaceSystem, "check")
	refused, err := k.Apply(map[cache.ObjectName]Rules{check: r}, true)
	if err != nil {
		return err
	}
	if err := refused[check]; err != nil {
		return fmt.Errorf("rules of a Service: %w", err)
	}
	return nil
}
