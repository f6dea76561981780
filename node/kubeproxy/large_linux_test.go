package kubeproxy

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// manySlices are slices of n endpoints that count up from first, all at port
// 8080, as the API server bounds them: a thousand in each.
func manySlices(name string, first netip.Addr, n int) (all []*discoveryv1.EndpointSlice) {
	var addrs []string
	for i := range n {
		b := first.AsSlice()
		tail := b[len(b)-4:]
		binary.BigEndian.PutUint32(tail, binary.BigEndian.Uint32(tail)+uint32(i))
		a, _ := netip.AddrFromSlice(b)
		if addrs = append(addrs, a.String()); len(addrs) == 1000 || i == n-1 {
			s := slice(name, 8080, addrs...)
			if first.Is6() {
				s.AddressType = discoveryv1.AddressTypeIPv6
			}
			all, addrs = append(all, s), nil
		}
	}
	return all
}

// The attribute that carries a map's elements has a length of 16 bits, which
// 2,048 IPv4 endpoints overflow.
func TestFiveThousandEndpoints(t *testing.T) {
	inNamespace(t)
	serve(t, "10.1.0.1:8080")
	serve(t, "[fd01::1]:8080")
	k, err := newNFTables("knarr-test", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, cluster, first, backend string }{
		{"four", "10.43.0.7", "10.1.0.1", "10.1.0.1"},
		{"six", "fd43::7", "fd01::1", "fd01::1"},
	} {
		svc := service(c.name, c.cluster, corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP})
		first := netip.MustParseAddr(c.first)
		write(t, k, one(c.name, plan(svc, manySlices(c.name, first, 5000), host{name: "n1"})), c.name == "four")
		f := tableFor(k, first.Is6())
		for name, p := range f.pools {
			if len(p.slots) != 5000 {
				t.Errorf("%s: %s has %d endpoints", c.name, name, len(p.slots))
			}
		}
		if got := kernelElements(t, f.endpoints); got != 5000 {
			t.Errorf("%s: the kernel has %d endpoints, want 5000", c.name, got)
		}
		// All of them but one go, and the connection finds it.
		only := manySlices(c.name, first, 1)
		write(t, k, one(c.name, plan(svc, only, host{name: "n1"})), false)
		if _, err := ask(netip.AddrPortFrom(netip.MustParseAddr(c.cluster), 80).String()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// kernelElements counts the elements of a set.
func kernelElements(t *testing.T, set *nftables.Set) int {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	elements, err := c.GetSetElements(set)
	if err != nil {
		t.Fatal(err)
	}
	return len(elements)
}

func tableFor(k *kernel, v6 bool) *family {
	if v6 {
		return k.tables[1]
	}
	return k.tables[0]
}

func removeTable(table *nftables.Table) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.DelTable(table)
	return c.Flush()
}
