package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attach gives the pod a link, addresses and host ports, all of it or nothing.
// Done again for the same pod it gives the same addresses.
func attach(c *Conf, containerID, ifName, netns string) (a *Attachment, mac net.HardwareAddr, err error) {
	a = &Attachment{ContainerID: containerID, IfName: ifName, Netns: netns}
	for _, m := range c.RuntimeConfig.PortMappings {
		if m.HostPort != 0 {
			a.Ports = append(a.Ports, m)
		}
	}
	err = locked(c.StateDir, func() error {
		old, err := loadAttachment(c.StateDir, a.key())
		if err != nil {
			return err
		}
		if old != nil {
			if err := unpublish(c, old); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		var had []netip.Addr
		if old != nil {
			had = old.Addrs
		}
		if a.Addrs, err = allocate(c.StateDir, c.PodCIDRs, a.key(), had); err != nil {
			return err
		}
		if err := saveAttachment(c.StateDir, a); err != nil {
			return errors.Join(err, release(c.StateDir, c.PodCIDRs, a.key(), a.Addrs))
		}
		if err := guard(c, a); err != nil {
			return err
		}
		return closeNew(c, a)
	})
	defer func() {
		if err != nil {
			err = errors.Join(err, detach(c, containerID, ifName))
		}
	}()
	if err != nil {
		return nil, nil, err
	}
	bridge, err := EnsureBridge(c)
	if err != nil {
		return nil, nil, err
	}
	if mac, err = connect(c, bridge, a); err != nil {
		return nil, nil, err
	}
	if err = limitBandwidth(c, a); err != nil {
		return nil, nil, err
	}
	err = locked(c.StateDir, func() error {
		if !c.tableExists() {
			return writeTable(c)
		}
		return publish(c, a)
	})
	return a, mac, err
}

// detach undoes attach, as far as it came; what is gone already is no error.
func detach(c *Conf, containerID, ifName string) error {
	k := key(containerID, ifName)
	if err := errors.Join(disconnect(k), removeIFB(k)); err != nil {
		return err
	}
	return locked(c.StateDir, func() error {
		a, err := loadAttachment(c.StateDir, k)
		if err != nil {
			return err
		}
		if a != nil {
			if err := unguard(c, a); err != nil {
				return fmt.Errorf("remove the guard of the pod's link: %w", err)
			}
			a.Ports = notClaimed(c.StateDir, a)
			if c.tableExists() {
				if err := unpublish(c, a); err != nil {
					return err
				}
			}
			forgetFlows(a)
			if err := release(c.StateDir, c.PodCIDRs, k, a.Addrs); err != nil {
				return err
			}
		}
		return removeAttachment(c.StateDir, k)
	})
}

// notClaimed gives the attachment's ports without those that an earlier
// attachment has: a pod that was refused a port must not take it away.
func notClaimed(dir string, a *Attachment) []PortMapping {
	if len(a.Ports) == 0 {
		return nil
	}
	all, err := loadAttachments(dir)
	if err != nil {
		return a.Ports
	}
	type place struct{ set, key string }
	taken := map[place]bool{}
	for _, other := range all {
		if other.key() != a.key() {
			for _, e := range elements(other) {
				taken[place{e.set, e.key}] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(a.Ports), func(m PortMapping) bool {
		return slices.ContainsFunc(elements(&Attachment{Addrs: a.Addrs, Ports: []PortMapping{m}}), func(e element) bool {
			return taken[place{e.set, e.key}]
		})
	})
}

// forgetFlows drops what the kernel remembers of UDP flows to the pod's host
// ports; they never end by themselves while the sender goes on, and would be
// sent to an address that is somebody else's.
func forgetFlows(a *Attachment) {
	for _, m := range a.Ports {
		if !strings.EqualFold(m.Protocol, "udp") {
			continue
		}
		for _, addr := range a.Addrs {
			f := netlink.InetFamily(netlink.FAMILY_V4)
			if addr.Is6() {
				f = netlink.FAMILY_V6
			}
			filter := &netlink.ConntrackFilter{}
			if filter.AddProtocol(unix.IPPROTO_UDP) != nil || filter.AddPort(netlink.ConntrackOrigDstPort, m.HostPort) != nil {
				continue
			}
			// A kernel without this interface keeps its flows; they time out.
			_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, f, filter)
		}
	}
}

// check says what is missing of the attachment.
func check(c *Conf, containerID, ifName, netns string) error {
	a, err := loadAttachment(c.StateDir, key(containerID, ifName))
	if err != nil {
		return err
	}
	if a == nil {
		return fmt.Errorf("container %s has no address", containerID)
	}
	if netns != "" {
		a.Netns = netns
	}
	if !c.tableExists() {
		return fmt.Errorf("nftables table %s is missing", c.Table)
	}
	return verify(a)
}

// collect detaches every pod but the valid ones.
func collect(c *Conf) error {
	valid := map[string]bool{}
	for _, v := range c.Valid {
		valid[key(v.ContainerID, v.IfName)] = true
	}
	all, err := loadAttachments(c.StateDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range all {
		if !valid[a.key()] {
			errs = append(errs, detach(c, a.ContainerID, a.IfName))
		}
	}
	// And the addresses of those that came no further.
	errs = append(errs, locked(c.StateDir, func() error {
		return releaseIf(c.StateDir, c.PodCIDRs, func(owner string) bool { return !valid[owner] })
	}))
	return errors.Join(errs...)
}

// Ready reports whether pods can be attached.
func Ready(c *Conf) error {
	if _, err := netlink.LinkByName(c.Bridge); err != nil {
		return fmt.Errorf("bridge %s: %w", c.Bridge, err)
	}
	if !c.tableExists() {
		return fmt.Errorf("nftables table %s is missing", c.Table)
	}
	return nil
}

// RemoveLinks removes the bridge and the node's ends of the pods' links.
func RemoveLinks(bridge, stateDir string) error {
	all, err := loadAttachments(stateDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range all {
		errs = append(errs, disconnect(a.key()), removeIFB(a.key()))
	}
	link, err := netlink.LinkByName(bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return errors.Join(errs...)
	}
	if err == nil && link.Type() == "bridge" {
		err = netlink.LinkDel(link)
	}
	return errors.Join(append(errs, err)...)
}

// prefixOf gives the address as the result shows it.
func prefixOf(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }
