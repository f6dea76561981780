package cluster

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ranges are address ranges, at most one of each family, the cluster's first family
// first. As text they are separated by commas, as in flags.
type ranges []netip.Prefix

func (r ranges) String() string { return joined(r) }

// MarshalText makes one range in JSON what it was when there could be no second.
func (r ranges) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (r *ranges) UnmarshalText(text []byte) (err error) {
	*r, err = parseList(string(text), netip.ParsePrefix)
	for i := range *r {
		(*r)[i] = (*r)[i].Masked()
	}
	return err
}

// addresses are addresses, at most one of each family, the same.
type addresses []netip.Addr

func (a addresses) String() string { return joined(a) }

func (a addresses) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

func (a *addresses) UnmarshalText(text []byte) (err error) {
	*a, err = parseList(string(text), netip.ParseAddr)
	return err
}

// netIPs are the addresses in the standard library's older form.
func (a addresses) netIPs() (all []net.IP) {
	for _, ip := range a {
		all = append(all, ip.AsSlice())
	}
	return all
}

func joined[T fmt.Stringer](list []T) string {
	var s []string
	for _, one := range list {
		s = append(s, one.String())
	}
	return strings.Join(s, ",")
}

func parseList[T any](s string, parse func(string) (T, error)) (all []T, err error) {
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		one, err := parse(part)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
		all = append(all, one)
	}
	return all, nil
}

// families says which of IPv6 and IPv4 the list has, in its order.
func (r ranges) families() (v6 []bool) {
	for _, p := range r {
		v6 = append(v6, p.Addr().Is6())
	}
	return v6
}

func (a addresses) families() (v6 []bool) {
	for _, ip := range a {
		v6 = append(v6, ip.Is6())
	}
	return v6
}

// has reports whether there is a range of IPv6, or of IPv4.
func (r ranges) has(v6 bool) bool { return slices.Contains(r.families(), v6) }

// overlap gives the first range of one list that overlaps one of another.
func (r ranges) overlap(others ranges) (mine, theirs netip.Prefix, found bool) {
	for _, p := range r {
		for _, q := range others {
			if p.Overlaps(q) {
				return p, q, true
			}
		}
	}
	return netip.Prefix{}, netip.Prefix{}, false
}

// everywhereAddress is where to listen to be reached at all addresses of the cluster's
// families.
func (r ranges) everywhereAddress() string {
	if r.has(true) {
		return "::" // IPv4 too
	}
	return "0.0.0.0"
}

// ranges reads a flag's.
func (f *faults) ranges(flag, s string) ranges {
	list, err := parseList(s, netip.ParsePrefix)
	if err != nil || len(list) == 0 {
		f.add(flag, "%q is not a range such as 10.42.0.0/16, or one of each family such as 10.42.0.0/16,fd00:42::/56", s)
		return nil
	}
	for i := range list {
		list[i] = list[i].Masked()
	}
	if len(list) > 2 || len(list) == 2 && list[0].Addr().Is6() == list[1].Addr().Is6() {
		f.add(flag, "%q has more than one range of a family; give at most one of IPv4 and one of IPv6", s)
		return nil
	}
	return list
}

// addresses reads a flag's.
func (f *faults) addresses(flag, s string) addresses {
	list, err := parseList(s, netip.ParseAddr)
	if err != nil || len(list) == 0 {
		f.add(flag, "%q is not an IP address, or one of each family separated by a comma", s)
		return nil
	}
	for i := range list {
		list[i] = list[i].Unmap()
	}
	if len(list) > 2 || len(list) == 2 && list[0].Is6() == list[1].Is6() {
		f.add(flag, "%q has more than one address of a family; give at most one of IPv4 and one of IPv6", s)
		return nil
	}
	return list
}

// The ranges of a cluster that is given none, of each family.
var (
	defaultPods     = map[bool]string{false: "10.42.0.0/16", true: "fd00:42::/56"}
	defaultServices = map[bool]string{false: "10.43.0.0/16", true: "fd00:43::/112"}
)

// defaultRanges are those of these families.
func defaultRanges(of map[bool]string, v6 []bool) string {
	var all []string
	for _, six := range v6 {
		all = append(all, of[six])
	}
	return strings.Join(all, ",")
}

// ofCluster orders a node's addresses as a cluster has its families. Of addresses that
// nobody gave it leaves out those of a family that the cluster has not. The cluster's
// first family must be among them: it is that of the Service kubernetes, and of the
// tunnels between nodes. Pure.
func (a addresses) ofCluster(pods ranges, given bool) (addresses, error) {
	if len(pods) == 0 || len(a) == 0 {
		return a, nil // said to be wrong already
	}
	var ordered addresses
	for _, six := range pods.families() {
		for _, ip := range a {
			if ip.Is6() == six {
				ordered = append(ordered, ip)
			}
		}
	}
	if len(ordered) == 0 || ordered[0].Is6() != pods[0].Addr().Is6() {
		family := "IPv4"
		if pods[0].Addr().Is6() {
			family = "IPv6"
		}
		return nil, fmt.Errorf("the cluster's first range of pods, %s, is of %s, and this node has %s; give an address of that family too, or another order of ranges to the first server", pods[0], family, a)
	}
	for _, ip := range a {
		if given && !slices.Contains(ordered, ip) {
			ordered = append(ordered, ip)
		}
	}
	return ordered, nil
}

// defaultAddresses are those this host would reach others from, one of each family that
// it has a route of; without any, the first that a link has; without that, loopback.
func defaultAddresses() (all addresses) {
	for _, to := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // of documentation, and nothing is sent
		if ip, ok := sourceAddress(to); ok {
			all = append(all, ip)
		}
	}
	for _, six := range []bool{false, true} {
		if ip, ok := firstAddress(six); ok && len(all) == 0 {
			all = append(all, ip)
		}
	}
	if len(all) == 0 {
		all = addresses{netip.MustParseAddr("127.0.0.1")}
	}
	return all
}

// sourceAddress is where packets to an address would come from: no address that the
// host takes for a day, so that others do not know it.
func sourceAddress(to string) (netip.Addr, bool) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { // a kernel that does not know it takes any
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_ADDR_PREFERENCES, preferPublic)
		})
	}}
	c, err := d.Dial("udp", to)
	if err != nil {
		return netip.Addr{}, false
	}
	defer c.Close()
	ip := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	return ip, ip.IsGlobalUnicast()
}

// preferPublic is IPV6_PREFER_SRC_PUBLIC.
const preferPublic = 2

// firstAddress is the first one of a family that a link of this host has.
func firstAddress(v6 bool) (netip.Addr, bool) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, false
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if ip := p.Addr().Unmap(); err == nil && ip.Is6() == v6 && ip.IsGlobalUnicast() {
			return ip, true
		}
	}
	return netip.Addr{}, false
}
