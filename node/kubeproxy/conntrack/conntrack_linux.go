// Package conntrack sets the limits of the kernel's connection tracking, and ends UDP
// flows that go on to where no endpoint is any more. It reads and writes the kernel's
// settings, and reads and deletes its entries.
package conntrack

import (
	"log/slog"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
)

// A Stale selects UDP flows to fronts of Services that lead to other endpoints than
// those that live. TCP connections end by themselves; UDP clients would send into
// the void.
type Stale struct {
	// Endpoints are those that live, by the front. A node port's front has the
	// unspecified address of its family.
	Endpoints map[netip.AddrPort]map[netip.AddrPort]bool
	// Local are the addresses where node ports are.
	Local map[netip.Addr]bool
}

// Forget deletes the stale flows of a family, and tells how many there were.
func Forget(v6 bool, s Stale) (uint, error) {
	if len(s.Endpoints) == 0 {
		return 0, nil
	}
	return netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family(v6), s)
}

func family(v6 bool) netlink.InetFamily {
	if v6 {
		return syscall.AF_INET6
	}
	return syscall.AF_INET
}

// LocalAddresses are those of this machine, of a family.
func LocalAddresses(v6 bool) map[netip.Addr]bool {
	here := map[netip.Addr]bool{}
	addrs, err := netlink.AddrList(nil, int(family(v6)))
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

// MatchConntrackFlow is netlink's question whether to delete an entry.
func (s Stale) MatchConntrackFlow(e *netlink.ConntrackFlow) bool {
	if e.Forward.Protocol != syscall.IPPROTO_UDP {
		return false
	}
	backend, ok1 := netip.AddrFromSlice(e.Reverse.SrcIP)
	front, ok2 := netip.AddrFromSlice(e.Forward.DstIP)
	if !ok1 || !ok2 {
		return false
	}
	backend, front = backend.Unmap(), front.Unmap()
	living, ours := s.Endpoints[netip.AddrPortFrom(front, e.Forward.DstPort)]
	if !ours && s.Local[front] {
		anywhere := netip.IPv4Unspecified()
		if front.Is6() {
			anywhere = netip.IPv6Unspecified()
		}
		living, ours = s.Endpoints[netip.AddrPortFrom(anywhere, e.Forward.DstPort)]
	}
	return ours && !living[netip.AddrPortFrom(backend, e.Reverse.SrcPort)]
}
