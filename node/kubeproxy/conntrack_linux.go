package kubeproxy

import (
	"log/slog"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
)

// forgetFlows drops the kernel's memory of UDP flows to these fronts that would
// go on to an endpoint that is gone, or past a Service that has endpoints only
// now. TCP connections end by themselves; UDP clients would send into the void.
func (f *family) forgetFlows(fronts map[Front]Target) {
	stale := staleFlows{endpoints: map[netip.AddrPort]map[netip.AddrPort]bool{}}
	for front, target := range fronts {
		living := map[netip.AddrPort]bool{}
		for _, name := range []string{target.Pool, target.Inside} {
			p := f.pools[name]
			for _, ep := range p.slots {
				living[ep] = true
			}
			for _, ep := range p.ending {
				living[ep] = true
			}
		}
		stale.endpoints[netip.AddrPortFrom(front.Addr, front.Number)] = living
		if front.isNodePort() && stale.local == nil {
			stale.local = f.nodePortAddresses()
		}
	}
	if len(stale.endpoints) == 0 {
		return
	}
	family := netlink.InetFamily(syscall.AF_INET)
	if f.v6 {
		family = syscall.AF_INET6
	}
	began := time.Now()
	n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, stale)
	if err != nil {
		slog.Warn("forget stale UDP flows", "err", err)
	}
	f.metrics.deletedFlows.WithLabelValues(f.label()).Add(float64(n))
	f.metrics.flows.WithLabelValues(f.label()).Observe(time.Since(began).Seconds())
}

// forgetAllFlows does so after a start: endpoints may have gone meanwhile.
func (f *family) forgetAllFlows() {
	fronts := map[Front]Target{}
	for _, r := range f.applied {
		for front, target := range r.Fronts {
			if front.Protocol == corev1.ProtocolUDP && front.Addr.Is6() == f.v6 {
				fronts[front] = target
			}
		}
	}
	f.forgetFlows(fronts)
}

// nodePortAddresses are those of this node where node ports are.
func (f *family) nodePortAddresses() map[netip.Addr]bool {
	here := map[netip.Addr]bool{}
	if f.nodePortsByNode {
		for a := range f.nodeAddresses {
			here[a] = true
		}
		return here
	}
	family := syscall.AF_INET
	if f.v6 {
		family = syscall.AF_INET6
	}
	addrs, err := netlink.AddrList(nil, family)
	if err != nil {
		slog.Warn("list the addresses of this node", "err", err)
	}
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			here[addr.Unmap()] = true
		}
	}
	return here
}

// staleFlows matches connection-tracking entries by their front, those to other
// endpoints than these.
type staleFlows struct {
	endpoints map[netip.AddrPort]map[netip.AddrPort]bool
	local     map[netip.Addr]bool // where node ports are
}

func (s staleFlows) MatchConntrackFlow(e *netlink.ConntrackFlow) bool {
	if e.Forward.Protocol != syscall.IPPROTO_UDP {
		return false
	}
	backend, ok1 := netip.AddrFromSlice(e.Reverse.SrcIP)
	front, ok2 := netip.AddrFromSlice(e.Forward.DstIP)
	if !ok1 || !ok2 {
		return false
	}
	backend, front = backend.Unmap(), front.Unmap()
	living, ours := s.endpoints[netip.AddrPortFrom(front, e.Forward.DstPort)]
	if !ours && s.local[front] {
		anywhere := netip.IPv4Unspecified()
		if front.Is6() {
			anywhere = netip.IPv6Unspecified()
		}
		living, ours = s.endpoints[netip.AddrPortFrom(anywhere, e.Forward.DstPort)]
	}
	return ours && !living[netip.AddrPortFrom(backend, e.Reverse.SrcPort)]
}
