package kubeproxy

import (
	"log/slog"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
)

// forgetConnections drops the kernel's memory of UDP flows that would go on to
// an endpoint that is gone, or past a Service that has endpoints only now. TCP
// connections end by themselves; UDP clients would send into the void.
func (t *transaction) forgetConnections() {
	if len(t.stale) == 0 && len(t.fresh) == 0 {
		return
	}
	f := flows{}
	for _, ep := range t.stale {
		f[flow{ep, true}] = true
	}
	for _, front := range t.fresh {
		f[flow{front, false}] = true
	}
	family := netlink.InetFamily(syscall.AF_INET)
	if t.f.v6 {
		family = syscall.AF_INET6
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, f); err != nil {
		slog.Warn("forget stale UDP flows", "err", err)
	}
}

// flows matches connection-tracking entries.
type flows map[flow]bool

type flow struct {
	netip.AddrPort
	backend bool
}

func (f flows) MatchConntrackFlow(e *netlink.ConntrackFlow) bool {
	if e.Forward.Protocol != syscall.IPPROTO_UDP {
		return false
	}
	backend, ok1 := netip.AddrFromSlice(e.Reverse.SrcIP)
	front, ok2 := netip.AddrFromSlice(e.Forward.DstIP)
	backend, front = backend.Unmap(), front.Unmap()
	return ok1 && f[flow{netip.AddrPortFrom(backend, e.Reverse.SrcPort), true}] ||
		ok2 && front == backend && f[flow{netip.AddrPortFrom(front, e.Forward.DstPort), false}]
}
