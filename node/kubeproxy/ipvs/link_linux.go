package ipvs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A link has the Services' addresses, so that this machine takes what is sent there:
// the kernel looks for virtual servers only then. It is a dummy, and up.
type link struct {
	name string
	have map[netip.Addr]bool
}

func (l *link) find() (netlink.Link, error) {
	found, err := netlink.LinkByName(l.name)
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", l.name, err)
	}
	return found, nil
}

func (l *link) exists() (bool, error) {
	_, err := l.find()
	if gone := (netlink.LinkNotFoundError{}); errors.As(err, &gone) {
		return false, nil
	}
	return err == nil, err
}

// read makes the link if there is none, and takes over the addresses that it has.
func (l *link) read() error {
	there, err := l.exists()
	if err != nil {
		return err
	}
	if !there {
		if err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: l.name}}); err != nil {
			return fmt.Errorf("make link %s: %w", l.name, err)
		}
	}
	dev, err := l.find()
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(dev); err != nil {
		return fmt.Errorf("set link %s up: %w", l.name, err)
	}
	found, err := l.list(dev)
	if err == nil {
		l.have = found
	}
	return err
}

func (l *link) list(dev netlink.Link) (map[netip.Addr]bool, error) {
	addrs, err := netlink.AddrList(dev, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of link %s: %w", l.name, err)
	}
	found := map[netip.Addr]bool{}
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && !addr.Unmap().IsLinkLocalUnicast() {
			found[addr.Unmap()] = true
		}
	}
	return found, nil
}

// set makes the link's addresses these.
func (l *link) set(want map[netip.Addr]bool) error {
	dev, err := l.find()
	if err != nil {
		return err
	}
	for a := range l.have {
		if want[a] {
			continue
		}
		if err := netlink.AddrDel(dev, address(a)); err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			return fmt.Errorf("delete address %s of link %s: %w", a, l.name, err)
		}
		delete(l.have, a)
	}
	for a := range want {
		if l.have[a] {
			continue
		}
		if err := netlink.AddrAdd(dev, address(a)); err != nil && !errors.Is(err, syscall.EEXIST) {
			return fmt.Errorf("give link %s address %s: %w", l.name, a, err)
		}
		l.have[a] = true
	}
	return nil
}

func address(a netip.Addr) *netlink.Addr {
	bits := a.BitLen()
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, bits)}, Flags: unix.IFA_F_NODAD}
}

// intact says whether the link has its addresses.
func (l *link) intact() error {
	dev, err := l.find()
	if err != nil {
		return err
	}
	found, err := l.list(dev)
	if err != nil {
		return err
	}
	for a := range l.have {
		if !found[a] {
			return fmt.Errorf("address %s of link %s is gone", a, l.name)
		}
	}
	return nil
}

func (l *link) remove() error {
	dev, err := l.find()
	if err != nil {
		return err
	}
	return netlink.LinkDel(dev)
}

// switches are the kernel's settings of virtual servers: what the mode needs, and what
// is usual. Connection tracking lets them be masqueraded; connections to endpoints that
// are gone end; a client with affinity leaves an endpoint that ends; a port that is used
// again may reach another endpoint.
var switches = []struct{ name, needed, usual string }{
	{"conntrack", "1", "0"},
	{"conn_reuse_mode", "0", "1"},
	{"expire_nodest_conn", "1", "0"},
	{"expire_quiescent_template", "1", "0"},
}

const switchDir = "/proc/sys/net/ipv4/vs"

func setSwitches() error {
	for _, s := range switches {
		if err := os.WriteFile(filepath.Join(switchDir, s.name), []byte(s.needed), 0o644); err != nil {
			return fmt.Errorf("--proxy-mode ipvs: %w", err)
		}
	}
	return nil
}

func resetSwitches() error {
	var errs []error
	for _, s := range switches {
		errs = append(errs, os.WriteFile(filepath.Join(switchDir, s.name), []byte(s.usual), 0o644))
	}
	return errors.Join(errs...)
}
