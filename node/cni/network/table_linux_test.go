package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/nftables"
)

// A table made anew has all host ports of all pods, more than the 16 bits of one
// list's length hold.
func TestManyHostPorts(t *testing.T) {
	w := newWorld(t)
	const pods, ports = 40, 100
	for i := range pods {
		a := &Attachment{ContainerID: fmt.Sprint("pod", i), IfName: "eth0", Addrs: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.9.1.%d", 10+i)), netip.MustParseAddr(fmt.Sprintf("fd00:9:1::%d", 10+i))}}
		for j := range ports {
			a.Ports = append(a.Ports, PortMapping{HostPort: uint16(10000 + i*ports + j), ContainerPort: 80, Protocol: "tcp"})
		}
		must(t, saveAttachment(w.conf.StateDir, a))
	}
	must(t, w.node.do(func() error {
		if err := EnsureTable(&w.conf); err != nil {
			return err
		}
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		for _, name := range []string{portsAny4, portsAny6} {
			elements, err := conn.GetSetElements(sets(tableOf(w.conf.Table))[name])
			if err != nil {
				return err
			}
			seen := map[uint16]bool{}
			for _, e := range elements {
				seen[binary.BigEndian.Uint16(e.Key[4:])] = true
			}
			if len(seen) != pods*ports {
				t.Errorf("%s has %d host ports, want %d", name, len(seen), pods*ports)
			}
		}
		return nil
	}))
}
