package loadbalancer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"knarr/addons/loadbalancer/addresspool"
)

func poolOfRanges(name string, ranges ...string) pool {
	of, problems := poolOf(&addresspool.AddressPool{Spec: addresspool.Spec{Addresses: ranges}})
	if len(problems) > 0 {
		panic(fmt.Sprint(problems))
	}
	of.name = name
	return of
}

func TestAllot(t *testing.T) {
	small := poolOfRanges("small", "192.0.2.1-192.0.2.2")
	six := poolOfRanges("six", "2001:db8::/64")
	byHand := poolOfRanges("by-hand", "198.51.100.0/24")
	byHand.auto = false
	shop := poolOfRanges("shop", "203.0.113.7")
	shop.namespaces = []string{"shop"}
	withNode := poolOfRanges("nodes", "10.0.0.1-10.0.0.3")
	other := func(s service) service { s.name.Namespace = "other"; return s }
	asks := func(s service, a string) service { s.asks, s.wanted = true, addresses(a); return s }
	holds := func(s service, a string) service { s.held = addresses(a); return s }
	dual := func(s service) service {
		s.families = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
		return s
	}
	from := func(s service, name string) service { s.pool = name; return s }
	for _, c := range []struct {
		name     string
		pools    []pool
		services []service
		want     string
	}{
		{"one each", []pool{small}, []service{svc("a", 80), svc("b", 80)}, "a: 192.0.2.1; b: 192.0.2.2"},
		{"no pool", nil, []service{svc("a", 80)}, "a at the nodes"},
		{"what it has stays", []pool{small}, []service{svc("a", 80), holds(svc("b", 80), "192.0.2.1")}, "a: 192.0.2.2; b: 192.0.2.1"},
		{"shared by port when there is no other", []pool{small}, []service{svc("a", 80), svc("b", 80), svc("c", 81), svc("d", 81), svc("e", 81)},
			"a: 192.0.2.1; b: 192.0.2.2; c: 192.0.2.1; d: 192.0.2.2; e: (no address is left in address pool small)"},
		{"not among namespaces", []pool{small}, []service{svc("a", 80), svc("b", 80), other(svc("c", 81))}, "a: 192.0.2.1; b: 192.0.2.2; c: (no address is left in address pool small)"},
		{"both families", []pool{small, six}, []service{dual(svc("a", 80))}, "a: 2001:db8:: 192.0.2.1"},
		{"one family of two", []pool{small}, []service{dual(svc("a", 80))}, "a: 192.0.2.1"},
		{"a wanted one", []pool{small}, []service{svc("a", 80), asks(svc("b", 80), "192.0.2.2")}, "a: 192.0.2.1; b: 192.0.2.2"},
		{"a wanted one that the older has", []pool{small}, []service{svc("a", 80), asks(svc("b", 80), "192.0.2.1")}, "a: 192.0.2.1; b: (port 80/TCP at 192.0.2.1 is Service ns/a's)"},
		{"a wanted one by another port", []pool{small}, []service{svc("a", 80), asks(svc("b", 81), "192.0.2.1")}, "a: 192.0.2.1; b: 192.0.2.1"},
		{"a wanted one of another namespace", []pool{small}, []service{svc("a", 80), other(asks(svc("b", 81), "192.0.2.1"))}, "a: 192.0.2.1; b: (192.0.2.1 is namespace ns's)"},
		{"a wanted one of no pool", []pool{small}, []service{asks(svc("a", 80), "192.0.2.200")}, "a at the nodes"},
		{"only when asked", []pool{byHand}, []service{svc("a", 80), from(svc("b", 80), "by-hand"), asks(svc("c", 80), "198.51.100.77")}, "a at the nodes; b: 198.51.100.0; c: 198.51.100.77"},
		{"only for a namespace", []pool{shop}, []service{svc("a", 80), func() service { s := svc("b", 80); s.name.Namespace = "shop"; return s }()}, "a at the nodes; b: 203.0.113.7"},
		{"a pool that is not there", []pool{small}, []service{from(svc("a", 80), "none")}, "a: (there is no address pool \"none\" for its namespace and addresses)"},
		{"a node's address", []pool{withNode}, []service{svc("a", 80), asks(svc("b", 80), "10.0.0.1")}, "a: 10.0.0.3; b: (10.0.0.1 is a node's)"},
		{"what it holds is another's pool", []pool{small}, []service{holds(svc("a", 80), "10.0.0.1")}, "a: 192.0.2.1"},
	} {
		got, others := allot(c.services, twoNodes, c.pools)
		var all []string
		for _, s := range c.services {
			v, ok := got[s.name]
			text := s.name.Name + ":"
			if !ok {
				text = s.name.Name + " at the nodes"
			}
			for _, a := range v.addresses {
				text += " " + a.String()
			}
			for _, r := range v.refused {
				text += " (" + r + ")"
			}
			all = append(all, text)
		}
		if joined := strings.Join(all, "; "); joined != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, joined, c.want)
		}
		if len(got)+len(others) != len(c.services) {
			t.Errorf("%s: %d and %d of %d", c.name, len(got), len(others), len(c.services))
		}
		for i := range c.services { // what a plan gives is what the next plan finds
			c.services[i].held = got[c.services[i].name].addresses
		}
		again, _ := allot(c.services, twoNodes, c.pools)
		for _, name := range slices.Collect(maps.Keys(got)) {
			if !slices.Equal(got[name].addresses, again[name].addresses) {
				t.Errorf("%s: %s has %v, then %v", c.name, name, got[name].addresses, again[name].addresses)
			}
		}
	}
}

// A pool of many addresses is not walked through for each Service.
func BenchmarkAllot(b *testing.B) {
	pools := []pool{poolOfRanges("large", "10.128.0.0/12")}
	var services []service
	for i := range 5000 {
		services = append(services, svc(fmt.Sprintf("s%05d", i), 80))
	}
	for b.Loop() {
		if got, _ := allot(services, twoNodes, pools); len(got) != len(services) {
			b.Fatal(len(got))
		}
	}
}
