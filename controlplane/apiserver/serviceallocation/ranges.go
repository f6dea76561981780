package serviceallocation

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"knarr/controlplane/apiserver/watchcache"
)

// defaultRange is the ServiceCIDR that the first server's flags were.
const defaultRange = "kubernetes"

// subnets are the ranges to allocate from, by family, as of a change of the
// ServiceCIDRs.
type subnets struct {
	revision int64
	of       map[corev1.IPFamily][]netip.Prefix
}

// subnets are the ranges that addresses of a family come from: those of all
// ServiceCIDRs that are ready, the configured one first. The configured one counts
// as ready while no ServiceCIDR has it and the default one is not there yet: a server
// that is started with another range gives no address of it.
func (a *Allocator) subnets(f corev1.IPFamily) []netip.Prefix {
	if a.cfg.Ranges == nil {
		return []netip.Prefix{a.ranges[f]}
	}
	revision := a.cfg.Ranges.Changed()
	have := a.current.Load()
	if have == nil || have.revision != revision {
		have = &subnets{revision, readySubnets(a.cfg.Ranges, a.ranges)}
		a.current.Store(have)
	}
	return have.of[f]
}

func readySubnets(stored *watchcache.Resource, configured map[corev1.IPFamily]netip.Prefix) map[corev1.IPFamily][]netip.Prefix {
	ready := map[netip.Prefix]bool{}
	made := false
	watchcache.Each(stored, "", func(c *networkingv1.ServiceCIDR) bool {
		is := c.DeletionTimestamp == nil && meta.IsStatusConditionTrue(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
		made = made || c.Name == defaultRange
		for _, text := range c.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				ready[p] = ready[p] || is
			}
		}
		return true
	})
	of := map[corev1.IPFamily][]netip.Prefix{}
	for f, p := range configured {
		if is, known := ready[p]; is || !known && !made {
			of[f] = append(of[f], p)
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(ready), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	}) {
		if f := familyOf(p.Addr()); ready[p] && configured[f] != p {
			of[f] = append(of[f], p)
		}
	}
	return of
}
