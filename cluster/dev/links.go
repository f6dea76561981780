package dev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ensureBridge makes the link that this host and the nodes share.
func (c *Cluster) ensureBridge(s state) error {
	link, err := netlink.LinkByName(c.bridge())
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = c.bridge()
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("add bridge %s: %w", c.bridge(), err)
		}
		link, err = netlink.LinkByName(c.bridge())
	}
	if err != nil {
		return fmt.Errorf("bridge %s: %w", c.bridge(), err)
	}
	for _, f := range s.families() {
		if f.v6() {
			enable6(c.bridge())
		}
		if err := netlink.AddrReplace(link, f.on(0)); err != nil {
			return fmt.Errorf("add %s to %s: %w", f.address(0), c.bridge(), err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", c.bridge(), err)
	}
	return nil
}

// plug connects a node to the bridge, as its eth0.
func (c *Cluster) plug(n int, s state) error {
	ns, err := netns.GetFromPath(c.space(n, spaces[0]))
	if err != nil {
		return fmt.Errorf("open namespace of %s: %w", c.node(n), err)
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter namespace of %s: %w", c.node(n), err)
	}
	defer inside.Close()
	const name = "eth0"
	if _, err := inside.LinkByName(name); errors.As(err, &netlink.LinkNotFoundError{}) {
		if old, err := netlink.LinkByName(c.link(n)); err == nil { // to a namespace that is no more the node's
			if err := netlink.LinkDel(old); err != nil {
				return fmt.Errorf("remove link %s: %w", c.link(n), err)
			}
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = c.link(n)
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerNamespace = name, netlink.NsFd(int(ns))
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("add link %s: %w", c.link(n), err)
		}
	}
	outer, err := netlink.LinkByName(c.link(n))
	if err != nil {
		return fmt.Errorf("link %s: %w", c.link(n), err)
	}
	bridge, err := netlink.LinkByName(c.bridge())
	if err != nil {
		return fmt.Errorf("bridge %s: %w", c.bridge(), err)
	}
	if err := errors.Join(netlink.LinkSetMaster(outer, bridge), netlink.LinkSetUp(outer)); err != nil {
		return fmt.Errorf("connect %s to %s: %w", c.link(n), c.bridge(), err)
	}
	lo, err := inside.LinkByName("lo")
	if err == nil {
		err = inside.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set lo of %s up: %w", c.node(n), err)
	}
	eth, err := inside.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", name, c.node(n), err)
	}
	if err := inside.LinkSetUp(eth); err != nil {
		return fmt.Errorf("set %s of %s up: %w", name, c.node(n), err)
	}
	for _, f := range s.families() {
		everything := ipnet(netip.IPv4Unspecified(), 0)
		if f.v6() {
			everything = ipnet(netip.IPv6Unspecified(), 0)
			if err := c.within(n, spaces[:1], func() error { enable6(name); return nil }); err != nil {
				return err
			}
		}
		if err := inside.AddrReplace(eth, f.on(n)); err != nil {
			return fmt.Errorf("add %s to %s: %w", f.address(n), c.node(n), err)
		}
		// Even a node that may not reach the world needs a route to it: the kernel
		// looks for one before it turns to Services.
		if err := inside.RouteReplace(&netlink.Route{LinkIndex: eth.Attrs().Index, Dst: everything, Gw: f.address(0).AsSlice()}); err != nil {
			return fmt.Errorf("add the default route of %s: %w", c.node(n), err)
		}
	}
	return nil
}

// on is a node's address as a link gets it: nobody else has it, so nothing waits for
// the kernel to make sure.
func (f family) on(n int) *netlink.Addr {
	a := &netlink.Addr{IPNet: ipnet(f.address(n), f.Hosts.Bits())}
	if f.v6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// enable6 lets a link speak IPv6 on a host that does not by default. If that fails,
// adding the address tells.
func enable6(link string) {
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/disable_ipv6", []byte("0"), 0o644)
}

// unplug removes the cluster's links from this host.
func (c *Cluster) unplug(nodes int) error {
	var errs []error
	names := []string{c.bridge()}
	for n := 1; n <= nodes; n++ {
		names = append(names, c.link(n))
	}
	for _, name := range names {
		link, err := netlink.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("remove link %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// hasDefaultRoute reports whether this host leads anywhere.
func hasDefaultRoute() (bool, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if ones := 0; r.Dst != nil {
			if ones, _ = r.Dst.Mask.Size(); ones > 0 {
				continue
			}
		}
		if r.Gw != nil || r.LinkIndex > 0 {
			return true, nil
		}
	}
	return false, nil
}

func ipnet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}
