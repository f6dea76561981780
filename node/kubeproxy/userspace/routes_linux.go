package userspace

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"knarr/node/kubeproxy/conntrack"
)

// protocol is who made a route, for those that look: one of the numbers that nobody
// registered.
const protocol = netlink.RouteProtocol(75)

// routes make ranges of addresses this machine's own (the kernel's AnyIP).
type routes struct {
	// metric tells apart the routes of several proxies: a hash of its name.
	metric int
	have   map[netip.Prefix]bool
}

func newRoutes(name string) routes {
	h := fnv.New32a()
	h.Write([]byte(name))
	return routes{metric: int(h.Sum32()>>1) | 1, have: map[netip.Prefix]bool{}}
}

func (r *routes) route(p netip.Prefix, lo netlink.Link) *netlink.Route {
	return &netlink.Route{
		LinkIndex: lo.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Protocol: protocol, Priority: r.metric,
		Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
	}
}

// set makes the routes those to these ranges.
func (r *routes) set(want map[netip.Prefix]bool) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback link: %w", err)
	}
	for p := range r.have {
		if want[p] {
			continue
		}
		if err := netlink.RouteDel(r.route(p, lo)); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("delete the local route to %s: %w", p, err)
		}
		delete(r.have, p)
	}
	for p := range want {
		if r.have[p] {
			continue
		}
		if err := netlink.RouteReplace(r.route(p, lo)); err != nil {
			return fmt.Errorf("make %s this machine's own by a local route: %w", p, err)
		}
		r.have[p] = true
	}
	return nil
}

// list are the routes of this name that the kernel has.
func (r *routes) list() (found map[netip.Prefix]bool, err error) {
	found = map[netip.Prefix]bool{}
	for _, family := range []int{syscall.AF_INET, syscall.AF_INET6} {
		all, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return nil, fmt.Errorf("list the local routes: %w", err)
		}
		for _, one := range all {
			if one.Dst == nil || one.Priority != r.metric {
				continue
			}
			if a, ok := netip.AddrFromSlice(one.Dst.IP); ok {
				bits, _ := one.Dst.Mask.Size()
				found[netip.PrefixFrom(a.Unmap(), bits)] = true
			}
		}
	}
	return found, nil
}

// read takes what the kernel has as what there is: that of an earlier run.
func (r *routes) read() (err error) {
	found, err := r.list()
	if err == nil {
		r.have = found
	}
	return err
}

// intact forgets routes that are gone, and says so.
func (r *routes) intact() error {
	found, err := r.list()
	if err != nil {
		return err
	}
	for p := range r.have {
		if !found[p] {
			r.have = found
			return fmt.Errorf("the local route to %s is gone", p)
		}
	}
	return nil
}

// local are the addresses of this machine in some ranges, without loopback's and
// links'.
func (r *routes) local(in []netip.Prefix, v6 bool) (addrs []netip.Addr) {
	for a := range conntrack.LocalAddresses(v6) {
		if a.IsLoopback() || a.IsLinkLocalUnicast() {
			continue
		}
		for _, p := range in {
			if p.Contains(a) {
				addrs = append(addrs, a)
				break
			}
		}
	}
	return addrs
}
