package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A way is what the kernel holds for one range of another node's pods: a route
// and, through the tunnel, a neighbour at the tunnel's other end.
//
// The other end of a tunnel goes by the first address of its node's range, and
// by a hardware address made of that: so all that a node must know of another
// is in its Node, and nobody writes anything there.
type way struct {
	dst  netip.Prefix
	via  netip.Addr
	mac  string     // of a tunnel's other end
	host netip.Addr // where that is
}

// waysTo gives the ways to peers, whose tunnels go to their addresses of this node's
// family of tunnels. Of DirectVXLAN it is asked for each address of a node whether
// that is near, and the tunnel is for what is not. Pure but for that.
func waysTo(peers []peer, backend string, v6 bool, near func(netip.Addr) bool) (ways []way) {
	for _, p := range peers {
		for _, r := range p.ranges {
			host, ok := p.host(r.Addr().Is6())
			if ok && (backend == HostGateway || backend == DirectVXLAN && near(host)) {
				ways = append(ways, way{dst: r, via: host})
			} else if backend != HostGateway {
				if host, ok := p.host(v6); ok {
					ways = append(ways, way{r, r.Addr(), hardware(p.ranges[0]).String(), host})
				}
			}
		}
	}
	return ways
}

// tunnelled reports whether a way goes through the tunnel.
func (w way) tunnelled() bool { return w.host.IsValid() }

// hardware is the address of a tunnel's end on a node with this first range. Of those
// that a controller gave no two have the same, and peersOf leaves others out: of IPv4 it is the range's address, of IPv6 the 40 bits before
// the end of its prefix, in which the ranges of a cluster differ.
func hardware(r netip.Prefix) net.HardwareAddr {
	mac := net.HardwareAddr{0x0e, 0x6b, 0, 0, 0, 0}
	if r.Addr().Is4() {
		copy(mac[2:], r.Addr().AsSlice())
		return mac
	}
	number := new(big.Int).SetBytes(r.Addr().AsSlice())
	number.Rsh(number, uint(r.Addr().BitLen()-r.Bits()))
	number.And(number, big.NewInt(1<<40-1)).FillBytes(mac[1:])
	return mac
}

const (
	// vxlanPort is the one that Linux, and flannel, have used from the start.
	vxlanPort = 8472
	// protocol marks the routes made here.
	protocol = 107
)

// applyWays makes the kernel hold the ways to these peers and no others of this
// cluster. A node alone has no tunnel.
func applyWays(c Config, peers []peer) error {
	if c.Backend == WireGuard {
		// Before the tunnel: a route by another link is one that is not encrypted.
		return errors.Join(removeRoutesBut(c.ClusterCIDRs, c.Tunnel), encrypt(c, peers))
	}
	ways := waysTo(peers, c.Backend, c.underlay().Is6(), c.nearness())
	var errs []error
	for _, w := range ways {
		if !w.tunnelled() {
			errs = append(errs, direct(w))
		}
	}
	if c.vxlan() && len(ways) > 0 {
		// Also if no way goes through it: a node that sees it otherwise may send by it.
		errs = append(errs, tunnel(c, slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return !w.tunnelled() })))
	} else {
		errs = append(errs, removeLink(c.Tunnel))
	}
	// Last, so that a way which changes its link is replaced and never missing.
	return errors.Join(append(errs, removeRoutes(c.ClusterCIDRs, ways))...)
}

// direct routes a range by its node, which must be on a link of this one.
func direct(w way) error {
	found, err := netlink.RouteGet(w.via.AsSlice())
	if err != nil || len(found) == 0 {
		return fmt.Errorf("find the link of node %s: %w", w.via, err)
	}
	if found[0].Gw != nil {
		return fmt.Errorf("node %s is behind the router %s; with nodes that share no link start the server with --flannel-backend=vxlan", w.via, found[0].Gw)
	}
	route := netlink.Route{Dst: ipnet(w.dst), Gw: w.via.AsSlice(), LinkIndex: found[0].LinkIndex, Protocol: protocol}
	if err := netlink.RouteReplace(&route); err != nil {
		return fmt.Errorf("add the route %s: %w", route, err)
	}
	return nil
}

// removeRoutesBut removes the routes made here into these ranges that are by another link.
func removeRoutesBut(ranges []string, link string) error {
	var keep []way
	if l, err := netlink.LinkByName(link); err == nil {
		have, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocol, LinkIndex: l.Attrs().Index}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_OIF)
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, r := range have {
			if dst, ok := prefix(r.Dst); ok {
				keep = append(keep, way{dst: dst})
			}
		}
	}
	return removeRoutes(ranges, keep)
}

// removeRoutes removes the routes made here into these ranges, but for the ways
// to keep.
func removeRoutes(ranges []string, keep []way) error {
	have, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	kept := map[netip.Prefix]bool{}
	for _, w := range keep {
		kept[w.dst] = true
	}
	var errs []error
	for _, r := range have {
		dst, ok := prefix(r.Dst)
		if !ok || kept[dst] || r.Flags&unix.RTNH_F_ONLINK != 0 || !within(dst, ranges) {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove the route %s: %w", r, err))
		}
	}
	return errors.Join(errs...)
}

func within(p netip.Prefix, ranges []string) bool {
	for _, s := range ranges {
		if r, err := netip.ParsePrefix(s); err == nil && r.Overlaps(p) && r.Bits() <= p.Bits() {
			return true
		}
	}
	return false
}

// tunnel makes the VXLAN link be there and hold exactly these ways.
func tunnel(c Config, ways []way) error {
	link, err := ensureTunnel(c)
	if err != nil {
		return err
	}
	index := link.Attrs().Index
	want := map[string]bool{}
	var errs []error
	for _, w := range ways {
		mac, err := net.ParseMAC(w.mac)
		if err != nil {
			return err
		}
		for _, n := range []netlink.Neigh{
			{LinkIndex: index, Family: family(w.via), State: netlink.NUD_PERMANENT, IP: w.via.AsSlice(), HardwareAddr: mac},
			{LinkIndex: index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT, IP: w.host.AsSlice(), HardwareAddr: mac},
		} {
			want[neighbour(&n)] = true
			if err := netlink.NeighSet(&n); err != nil {
				errs = append(errs, fmt.Errorf("add neighbour %s: %w", &n, err))
			}
		}
		route := netlink.Route{Dst: ipnet(w.dst), Gw: w.via.AsSlice(), LinkIndex: index, Flags: unix.RTNH_F_ONLINK, Protocol: protocol}
		want[w.dst.String()] = true
		if err := netlink.RouteReplace(&route); err != nil {
			errs = append(errs, fmt.Errorf("add the route %s: %w", route, err))
		}
	}
	return errors.Join(append(errs, forget(link, want))...)
}

// forget removes what the tunnel holds of nodes that are gone.
func forget(link netlink.Link, want map[string]bool) error {
	var errs []error
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: link.Attrs().Index, Protocol: protocol}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", link.Attrs().Name, err)
	}
	for _, r := range routes {
		if dst, ok := prefix(r.Dst); ok && !want[dst.String()] {
			errs = append(errs, netlink.RouteDel(&r))
		}
	}
	for _, fam := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		list, err := netlink.NeighList(link.Attrs().Index, fam)
		if err != nil {
			return fmt.Errorf("list neighbours of %s: %w", link.Attrs().Name, err)
		}
		for _, n := range list {
			if n.Family = fam; n.State&netlink.NUD_PERMANENT != 0 && n.IP != nil && !want[neighbour(&n)] {
				if fam == unix.AF_BRIDGE {
					n.Flags = netlink.NTF_SELF
				}
				errs = append(errs, netlink.NeighDel(&n))
			}
		}
	}
	return errors.Join(errs...)
}

func neighbour(n *netlink.Neigh) string {
	return fmt.Sprint(n.Family == unix.AF_BRIDGE, " ", n.IP, " ", n.HardwareAddr)
}

// ensureTunnel makes the VXLAN link be there as it should be.
func ensureTunnel(c Config) (netlink.Link, error) {
	under, err := linkOf(c.underlay())
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = c.Tunnel, under.Attrs().MTU-overhead(c.underlay())
	ranges, err := c.ownRanges()
	if err != nil {
		return nil, err
	}
	attrs.HardwareAddr = hardware(ranges[0])
	want := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: int(c.NetworkID), VtepDevIndex: under.Attrs().Index, SrcAddr: c.underlay().AsSlice(), Port: vxlanPort}
	link, err := netlink.LinkByName(c.Tunnel)
	if err == nil && !alike(link, want) {
		if err := removeLink(c.Tunnel); err != nil {
			return nil, err
		}
		err = netlink.LinkNotFoundError{}
	}
	if err != nil {
		err := netlink.LinkAdd(want)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil, fmt.Errorf("add tunnel %s: this kernel has no VXLAN (CONFIG_VXLAN); with nodes that share a link start the server with --flannel-backend=host-gw", c.Tunnel)
		}
		if err != nil {
			return nil, fmt.Errorf("add tunnel %s: %w", c.Tunnel, err)
		}
		if link, err = netlink.LinkByName(c.Tunnel); err != nil {
			return nil, fmt.Errorf("tunnel %s: %w", c.Tunnel, err)
		}
	}
	if err := c.addressTunnel(link); err != nil {
		return nil, err
	}
	return link, nil
}

// addressTunnel gives the tunnel its addresses on this node, and sets it up.
func (c Config) addressTunnel(link netlink.Link) error {
	ranges, err := c.ownRanges()
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if r.Addr().Is6() {
			conf := "/proc/sys/net/ipv6/conf/" + c.Tunnel
			_ = os.WriteFile(conf+"/disable_ipv6", []byte("0"), 0o644)
		}
		addr := &netlink.Addr{IPNet: ipnet(netip.PrefixFrom(r.Addr(), r.Addr().BitLen()))}
		if r.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("add %s to %s: %w", addr.IPNet, c.Tunnel, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", c.Tunnel, err)
	}
	return nil
}

// alike reports whether a link is the tunnel that is wanted.
func alike(have netlink.Link, want *netlink.Vxlan) bool {
	v, ok := have.(*netlink.Vxlan)
	return ok && v.VxlanId == want.VxlanId && v.VtepDevIndex == want.VtepDevIndex && v.SrcAddr.Equal(want.SrcAddr) &&
		v.Port == want.Port && !v.Learning && v.MTU == want.MTU && v.HardwareAddr.String() == want.HardwareAddr.String()
}

func (c Config) ownRanges() (ranges []netip.Prefix, err error) {
	for _, s := range c.PodCIDRs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("pod range: %w", err)
		}
		ranges = append(ranges, p.Masked())
	}
	if len(ranges) == 0 {
		return nil, errors.New("pod range: this node has none")
	}
	return ranges, nil
}

// linkOf gives the link that has an address of this machine.
func linkOf(ip netip.Addr) (netlink.Link, error) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if a.IP.Equal(ip.AsSlice()) {
			return netlink.LinkByIndex(a.LinkIndex)
		}
	}
	return nil, fmt.Errorf("no link of this machine has --node-ip %s; give an address of its own", ip)
}

// overhead is what the tunnel adds to each packet.
func overhead(host netip.Addr) int {
	if host.Is6() {
		return 70
	}
	return 50
}

// tunnelMTU is the size of packets that fit through the tunnel, 0 if there can
// be none.
func tunnelMTU(host netip.Addr, backend string) int {
	link, err := linkOf(host)
	if err != nil || link.Attrs().Flags&net.FlagLoopback != 0 {
		return 0
	}
	if backend == WireGuard {
		return link.Attrs().MTU - wireguardOverhead
	}
	return link.Attrs().MTU - overhead(host)
}

// removeWays removes the ways to all other nodes' pods.
func removeWays(c Config) error {
	return errors.Join(removeLink(c.Tunnel), removeRoutes(installedRanges(c), nil))
}

// installedRanges are the cluster's ranges, as installed if they are not given.
func installedRanges(c Config) []string {
	if len(c.ClusterCIDRs) > 0 {
		return c.ClusterCIDRs
	}
	b, err := os.ReadFile(filepath.Join(c.Dir, confName))
	var list struct {
		Plugins []struct{ ClusterCIDRs []string }
	}
	if err != nil || json.Unmarshal(b, &list) != nil || len(list.Plugins) == 0 {
		return nil
	}
	return list.Plugins[0].ClusterCIDRs
}

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

func family(a netip.Addr) int {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func ipnet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits), ok
}
