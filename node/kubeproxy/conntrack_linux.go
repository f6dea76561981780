package kubeproxy

import (
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubeproxy/conntrack"
)

// forgetFlows drops the kernel's memory of UDP flows to these fronts that would
// go on to an endpoint that is gone, or past a Service that has endpoints only
// now.
func (f *family) forgetFlows(fronts map[Front]Target) {
	stale := conntrack.Stale{Endpoints: map[netip.AddrPort]map[netip.AddrPort]bool{}}
	living := living{}
	for front, target := range fronts {
		stale.Endpoints[netip.AddrPortFrom(front.Addr, front.Number)] = living.of(target, func(name string) (eps, ending []netip.AddrPort) {
			return f.pools[name].slots, f.pools[name].ending
		})
		if front.IsNodePort() && stale.Local == nil {
			stale.Local = f.nodePortAddresses()
		}
	}
	if len(stale.Endpoints) == 0 {
		return
	}
	began := time.Now()
	n, err := conntrack.Forget(f.v6, stale)
	if err != nil {
		slog.Warn("forget stale UDP flows", "err", err)
	}
	f.metrics.deletedFlows.WithLabelValues(f.label()).Add(float64(n))
	f.metrics.flows.WithLabelValues(f.label()).Observe(time.Since(began).Seconds())
}

// udpFronts are all that may have flows.
func (f *family) udpFronts() map[Front]Target {
	fronts := map[Front]Target{}
	for _, r := range f.applied {
		for front, target := range r.Fronts {
			if front.Protocol == corev1.ProtocolUDP && front.Addr.Is6() == f.v6 {
				fronts[front] = target
			}
		}
	}
	return fronts
}

// nodePortAddresses are those of this node where node ports are.
func (f *family) nodePortAddresses() map[netip.Addr]bool {
	if !f.nodePortsByNode {
		return conntrack.LocalAddresses(f.v6)
	}
	here := map[netip.Addr]bool{}
	for a := range f.nodeAddresses {
		here[a] = true
	}
	return here
}
