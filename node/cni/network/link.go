package network

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// hostLink names the node's end of a pod's link.
func hostLink(key string) string {
	return fmt.Sprintf("veth%x", sha256.Sum256([]byte(key)))[:12]
}

// EnsureBridge makes the bridge be there, up, with the gateways' addresses.
func EnsureBridge(c *Conf) (netlink.Link, error) {
	link, err := netlink.LinkByName(c.Bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = c.Bridge
		attrs.MTU = c.MTU
		// An address of its own: a bridge otherwise takes the lowest of its ports, and
		// changes when that pod goes.
		attrs.HardwareAddr = hardware(gateway(c.PodCIDRs[0]))
		err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("add bridge %s: %w", c.Bridge, err)
		}
		link, err = netlink.LinkByName(c.Bridge)
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", c.Bridge, err)
	}
	if link.Type() != "bridge" {
		return nil, fmt.Errorf("link %s is there already and is no bridge but %s", c.Bridge, link.Type())
	}
	if c.MTU != 0 && link.Attrs().MTU != c.MTU {
		if err := netlink.LinkSetMTU(link, c.MTU); err != nil {
			return nil, fmt.Errorf("set mtu of %s: %w", c.Bridge, err)
		}
	}
	ignoreRouters(c.Bridge)
	for _, r := range c.PodCIDRs {
		if r.Addr().Is6() {
			// IPv6 is off by default on hosts that do not speak it themselves.
			// The bridge is the only one of its kind on itself, and would not
			// look for any neighbour for two seconds after its first pod if it
			// made sure of that. Should either fail, adding the address tells.
			conf := "/proc/sys/net/ipv6/conf/" + c.Bridge
			_ = os.WriteFile(conf+"/disable_ipv6", []byte("0"), 0o644)
			_ = os.WriteFile(conf+"/accept_dad", []byte("0"), 0o644)
		}
		addr := &netlink.Addr{IPNet: ipnet(gateway(r), r.Bits())}
		if r.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return nil, fmt.Errorf("add %s to %s: %w", addr.IPNet, c.Bridge, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("set %s up: %w", c.Bridge, err)
		}
	}
	return link, nil
}

// ignoreRouters keeps a link from taking addresses and routes from pods that
// say they are routers. A kernel without IPv6 has no such switch.
func ignoreRouters(link string) {
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/accept_ra", []byte("0"), 0o644)
}

// connect makes the pod's link and its routes.
//
// A pod has its address alone (/32 or /128) and reaches everything through the
// bridge's address: so all traffic, also between two pods of this node, passes
// the node's IP stack, where services and network policies are, and answers
// come back the same way. Where the kernel filters bridged frames too
// (br_netfilter) it sends what was redirected to a pod of the bridge straight
// there, past the IP stack but not past its filters; hence no isolation between
// the ports, and hairpin for a pod that is sent back to itself.
func connect(c *Conf, bridge netlink.Link, a *Attachment) (mac net.HardwareAddr, err error) {
	ns, err := netns.GetFromPath(a.Netns)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", a.Netns, err)
	}
	defer ns.Close()
	pod, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("enter network namespace %s: %w", a.Netns, err)
	}
	defer pod.Close()

	attrs := netlink.NewLinkAttrs()
	attrs.Name = hostLink(a.key())
	attrs.MTU = bridge.Attrs().MTU
	mac = hardware(a.Addrs[0])
	veth := netlink.NewVeth(attrs)
	veth.PeerName = a.IfName
	veth.PeerHardwareAddr = mac
	veth.PeerMTU = uint32(attrs.MTU)
	veth.PeerNamespace = netlink.NsFd(int(ns))
	if err := disconnect(a.key()); err != nil { // one of a try that was cut short
		return nil, err
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("add link %s: %w", a.IfName, err)
	}
	host, err := netlink.LinkByName(attrs.Name)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", attrs.Name, err)
	}
	if err := netlink.LinkSetMaster(host, bridge); err != nil {
		return nil, fmt.Errorf("add %s to %s: %w", attrs.Name, c.Bridge, err)
	}
	ignoreRouters(attrs.Name)
	if err := netlink.LinkSetHairpin(host, true); err != nil {
		return nil, fmt.Errorf("set hairpin on %s: %w", attrs.Name, err)
	}
	if err := netlink.LinkSetUp(host); err != nil {
		return nil, fmt.Errorf("set %s up: %w", attrs.Name, err)
	}

	link, err := pod.LinkByName(a.IfName)
	if err != nil {
		return nil, fmt.Errorf("link %s in the pod: %w", a.IfName, err)
	}
	for _, addr := range a.Addrs {
		na := &netlink.Addr{IPNet: ipnet(addr, addr.BitLen())}
		if addr.Is6() {
			na.Flags = unix.IFA_F_NODAD
		}
		if err := pod.AddrAdd(link, na); err != nil {
			return nil, fmt.Errorf("add %s to the pod: %w", addr, err)
		}
	}
	if err := pod.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set the pod's %s up: %w", a.IfName, err)
	}
	for _, route := range podRoutes(c.PodCIDRs, link.Attrs().Index) {
		if err := pod.RouteAdd(&route); err != nil {
			return nil, fmt.Errorf("add the pod's route %s: %w", route, err)
		}
	}
	return mac, nil
}

// podRoutes gives a pod's routes: to the gateway, and through it to the world.
func podRoutes(ranges []netip.Prefix, link int) []netlink.Route {
	var routes []netlink.Route
	for _, r := range ranges {
		gw := gateway(r)
		everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if gw.Is6() {
			everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		routes = append(routes,
			netlink.Route{LinkIndex: link, Dst: ipnet(gw, gw.BitLen()), Scope: netlink.SCOPE_LINK},
			netlink.Route{LinkIndex: link, Dst: ipnet(everything.Addr(), 0), Gw: gw.AsSlice()})
	}
	return routes
}

// disconnect removes the pod's link, if it is there.
func disconnect(key string) error {
	link, err := netlink.LinkByName(hostLink(key))
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", hostLink(key), err)
	}
	return nil
}

// verify says what is missing of the pod's link.
func verify(a *Attachment) error {
	ns, err := netns.GetFromPath(a.Netns)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", a.Netns, err)
	}
	defer ns.Close()
	pod, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", a.Netns, err)
	}
	defer pod.Close()
	link, err := pod.LinkByName(a.IfName)
	if err != nil {
		return fmt.Errorf("link %s in the pod: %w", a.IfName, err)
	}
	have, err := pod.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the pod's addresses: %w", err)
	}
	for _, want := range a.Addrs {
		found := false
		for _, h := range have {
			found = found || h.IP.Equal(want.AsSlice())
		}
		if !found {
			return fmt.Errorf("address %s is missing on the pod's %s", want, a.IfName)
		}
	}
	if _, err := netlink.LinkByName(hostLink(a.key())); err != nil {
		return fmt.Errorf("link %s: %w", hostLink(a.key()), err)
	}
	return nil
}

func ipnet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}
