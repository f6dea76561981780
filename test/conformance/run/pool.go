package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// client is where the suite asks addresses of load balancers from: to its specs one of the
// nodes' /16 is what a node translated. It is in a range for documentation (RFC 5737).
var client = netip.MustParsePrefix("198.51.100.1/32")

// addresses gives Services of type LoadBalancer addresses of their own in the nodes'
// network, which has them before there are endpoints, as specs expect.
func (c *cluster) addresses(ctx context.Context) error {
	if c.nodes == 1 || c.family != "" && c.family != "ipv4" {
		return nil
	}
	hosts, err := c.hosts()
	if err != nil {
		return err
	}
	first := hosts.Addr().As4()
	first[3] = 192
	pool := netip.PrefixFrom(netip.AddrFrom4(first), 27)
	if err := askFrom(client, hosts.Addr().Next(), pool); err != nil {
		return err
	}
	manifest := filepath.Join(c.out, "pool.yaml")
	if err := os.WriteFile(manifest, fmt.Appendf(nil, "apiVersion: knarr.io/v1alpha1\nkind: AddressPool\nmetadata: {name: e2e}\nspec: {addresses: [%s]}\n", pool), 0o644); err != nil {
		return err
	}
	return c.say(ctx, "pool.log", "kubectl", "--kubeconfig", c.kubeconfig(), "apply", "-f", manifest)
}

// askFrom lets this machine ask a pool's addresses from another one of its own than that
// of the link to the nodes, on which both are; they go with the link.
func askFrom(client netip.Prefix, own netip.Addr, pool netip.Prefix) error {
	links, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list this machine's addresses: %w", err)
	}
	for _, a := range links {
		if !a.IP.Equal(own.AsSlice()) {
			continue
		}
		link, err := netlink.LinkByIndex(a.LinkIndex)
		if err != nil {
			return fmt.Errorf("look for the link of %s: %w", own, err)
		}
		if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ipnet(client)}); err != nil {
			return fmt.Errorf("add %s to %s: %w", client, link.Attrs().Name, err)
		}
		route := netlink.Route{LinkIndex: a.LinkIndex, Scope: netlink.SCOPE_LINK, Dst: ipnet(pool), Src: client.Addr().AsSlice()}
		if err := netlink.RouteReplace(&route); err != nil {
			return fmt.Errorf("add a route to %s from %s: %w", pool, client.Addr(), err)
		}
		return nil
	}
	return fmt.Errorf("no link of this machine has %s, by which the nodes know it", own)
}

func ipnet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
