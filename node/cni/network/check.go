package network

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

// CheckBridge makes a bridge with a pod's link on it in the network namespace of
// the calling thread, and CheckTable the tables with a pod's elements. Both are
// for a namespace that ends afterwards.
func CheckBridge() error {
	c := checkConf("")
	if _, err := EnsureBridge(c); err != nil {
		return err
	}
	bridge, err := netlink.LinkByName(c.Bridge)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", c.Bridge, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "check0"
	veth := netlink.NewVeth(attrs)
	veth.PeerName = "check1"
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add a pair of veth links: %w", err)
	}
	if err := netlink.LinkSetMaster(veth, bridge); err != nil {
		return fmt.Errorf("add a veth link to the bridge: %w", err)
	}
	if err := netlink.LinkSetHairpin(veth, true); err != nil {
		return fmt.Errorf("set hairpin on a veth link: %w", err)
	}
	return nil
}

// CheckTable says what of the pod network's tables the kernel refuses.
func CheckTable() error {
	dir, err := os.MkdirTemp("", "knarr-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := checkConf(dir)
	a := &Attachment{ContainerID: "check", IfName: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("10.42.0.2"), netip.MustParseAddr("fd42::2")},
		Ports: []PortMapping{{HostPort: 80, ContainerPort: 80, Protocol: "tcp"}}}
	if err := saveAttachment(dir, a); err != nil {
		return err
	}
	return EnsureTable(c)
}

func checkConf(dir string) *Conf {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/24")}
	return &Conf{Bridge: "knarr-check", Table: "knarr-check", StateDir: dir, PodCIDRs: ranges, ClusterCIDRs: ranges, TunnelPort: 8472}
}
