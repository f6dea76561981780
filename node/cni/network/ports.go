package network

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// The sets of the table. A host port is one element of one map, so that a pod
// that comes or goes changes its own elements and nothing else.
const (
	portsAny4  = "ports4"      // protocol . port → pod . port
	portsAny6  = "ports6"      // the same for IPv6
	portsOn4   = "addr_ports4" // protocol . node address . port → pod . port
	portsOn6   = "addr_ports6"
	hairpinOf4 = "hairpin4" // pod . pod: a pod that reaches itself through the node
	hairpinOf6 = "hairpin6"
)

// element is one entry of a set, as the kernel sees it.
type element struct {
	set      string
	key, val string
}

// elements gives what the attachment's host ports are in the table. Pure.
func elements(a *Attachment) []element {
	var all []element
	for _, addr := range a.Addrs {
		hairpin := hairpinOf4
		if addr.Is6() {
			hairpin = hairpinOf6
		}
		published := false
		for _, m := range a.Ports {
			if m.HostPort == 0 {
				continue
			}
			set, on := portsAny4, portsOn4
			if addr.Is6() {
				set, on = portsAny6, portsOn6
			}
			k := proto(m.Protocol)
			if host, err := netip.ParseAddr(m.HostIP); m.HostIP != "" && err == nil && !host.IsUnspecified() {
				if host = host.Unmap(); host.Is4() != addr.Is4() {
					continue
				}
				set = on
				k += string(host.AsSlice())
			} else if err == nil && host.Is4() != addr.Is4() {
				continue // 0.0.0.0 is all of IPv4, :: all of IPv6
			}
			published = true
			all = append(all, element{set, k + port(m.HostPort), string(addr.AsSlice()) + port(m.ContainerPort)})
		}
		if published {
			all = append(all, element{set: hairpin, key: string(addr.AsSlice()) + string(addr.AsSlice())})
		}
	}
	return all
}

// allElements gives the elements of all attachments; of two that claim the
// same port the first has it, as it had when the second was refused.
func allElements(all []*Attachment) []element {
	type place struct{ set, key string }
	seen := map[place]bool{}
	var list []element
	for _, a := range all {
		for _, e := range elements(a) {
			if p := (place{e.set, e.key}); !seen[p] {
				seen[p] = true
				list = append(list, e)
			}
		}
	}
	return list
}

// Every field of a concatenation fills whole words of four bytes.

func proto(name string) string {
	number := byte(unix.IPPROTO_TCP)
	switch strings.ToLower(name) {
	case "udp":
		number = unix.IPPROTO_UDP
	case "sctp":
		number = unix.IPPROTO_SCTP
	}
	return string([]byte{number, 0, 0, 0})
}

func port(p uint16) string {
	b := make([]byte, 4)
	binary.BigEndian.PutUint16(b, p)
	return string(b)
}
