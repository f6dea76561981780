package kubeproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// A client that is kept at its endpoint stays there while others come and go and
// the proxy starts anew; when its endpoint goes, it is kept at the next.
func TestAffinityOutlivesChanges(t *testing.T) {
	inNamespace(t)
	serve(t, "10.1.0.1:8080")
	serve(t, "10.1.0.2:8080")
	serve(t, "[fd01::1]:8080")
	serve(t, "[fd01::1]:8081")
	sticky := func(name, ip string) *corev1.Service {
		svc := service(name, ip, corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP})
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		return svc
	}
	var k *kernel
	start := func() {
		t.Helper()
		if k != nil {
			if err := k.Close(); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if k, err = newNFTables("knarr-test", nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		front, pool string
		endpoints   []string
	}{
		{"10.43.0.7:80", "four", []string{"10.1.0.1:8080", "10.1.0.2:8080"}},
		{"[fd43::7]:80", "six", []string{"[fd01::1]:8080", "[fd01::1]:8081"}},
	} {
		front := netip.MustParseAddrPort(c.front)
		rules := func(endpoints ...string) map[cache.ObjectName]Rules {
			r := plan(sticky(c.pool, front.Addr().String()), nil, host{name: "n1"})
			p := Pool{V6: front.Addr().Is6(), Affinity: 10800}
			for _, ep := range endpoints {
				p.Endpoints = append(p.Endpoints, netip.MustParseAddrPort(ep))
			}
			p.Endpoints = ordered(p.Endpoints)
			r.Pools[c.pool] = p
			for f := range r.Fronts {
				r.Fronts[f] = Target{Pool: c.pool}
			}
			return one(c.pool, r)
		}
		stays := func(when, at string) {
			t.Helper()
			for range 20 {
				if got, err := ask(c.front); err != nil || got != at {
					t.Fatalf("%s: %q, %v, want %s", when, got, err, at)
				}
			}
		}
		start()
		write(t, k, rules(c.endpoints...), true)
		first, err := ask(c.front)
		if err != nil {
			t.Fatal(err)
		}
		other := c.endpoints[1-slices.Index(c.endpoints, first)]
		stays("at first", first)
		write(t, k, rules(first), false)
		write(t, k, rules(first, other), false)
		stays("after others came and went", first)
		start()
		write(t, k, rules(first, other), true)
		stays("after a restart", first)
		write(t, k, rules(other), false)
		stays("after its endpoint has gone", other)
		write(t, k, rules(first, other), false)
		stays("after that is back", other)
	}
	k.Close()
}

// While all rules are written anew, whether by this process or the next, no
// connection fails. What is left of another version goes.
func TestStartIsAtomic(t *testing.T) {
	inNamespace(t)
	serve(t, "10.1.0.1:8080")
	serve(t, "10.1.0.2:8080")
	k, err := newNFTables("knarr-test", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	all := manyServices(6000)
	write(t, k, all, true)
	leftovers(t, k.tables[0].table)
	var stop atomic.Bool
	wrong := make(chan error, 1)
	in := sameNamespace(t)
	go func() {
		defer close(wrong)
		in(func() {
			for !stop.Load() {
				if _, err := ask("10.43.0.8:80"); err != nil {
					wrong <- err
					return
				}
			}
		})
	}()
	for range 3 {
		next, err := newNFTables("knarr-test", nil)
		if err != nil {
			t.Fatal(err)
		}
		write(t, next, all, true)
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	if err := <-wrong; err != nil {
		t.Errorf("a connection while the proxy starts: %v", err)
	}
	for name := range chainsOf(t, k.tables[0]) {
		if strings.Contains(name, "old") {
			t.Errorf("chain %s is left of another version", name)
		}
	}
	if n := len(chainsOf(t, k.tables[0])); n > 10 {
		t.Errorf("%d chains after three starts", n)
	}
}

// leftovers are what a version with a chain per Service leaves.
func leftovers(t *testing.T, table *nftables.Table) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	set := &nftables.Set{Table: table, Name: "old-services", IsMap: true, KeyType: nftables.TypeIPAddr, DataType: nftables.TypeVerdict}
	chain := c.AddChain(&nftables.Chain{Name: "old-web", Table: table})
	base := c.AddChain(&nftables.Chain{Name: "old-output", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter})
	if err := c.AddSet(set, []nftables.SetElement{{Key: []byte{10, 43, 9, 9}, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain.Name}}}); err != nil {
		t.Fatal(err)
	}
	c.AddRule(&nftables.Rule{Table: table, Chain: base, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Lookup{SourceRegister: 1, IsDestRegSet: true, SetName: set.Name, SetID: set.ID}}})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// Each endpoint of a Service is picked equally often.
func TestPicksAreUniform(t *testing.T) {
	inNamespace(t)
	var addrs []string
	for port := range 3 {
		addrs = append(addrs, fmt.Sprint("10.1.0.1:", 8080+port))
		serve(t, addrs[port])
	}
	k, err := newNFTables("knarr-test", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	r := plan(service("web", "10.43.0.7", corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP}), nil, host{name: "n1"})
	p := Pool{}
	for _, a := range addrs {
		p.Endpoints = append(p.Endpoints, netip.MustParseAddrPort(a))
	}
	r.Pools["web"] = p
	for f := range r.Fronts {
		r.Fronts[f] = Target{Pool: "web"}
	}
	write(t, k, one("web", r), true)
	seen := map[string]int{}
	const n = 3000
	for range n {
		got, err := ask("10.43.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		seen[got]++
	}
	// The standard deviation is 26; six of them happen once in a billion runs.
	for _, a := range addrs {
		if seen[a] < n/3-156 || seen[a] > n/3+156 {
			t.Errorf("%s was picked %d times of %d", a, seen[a], n)
		}
	}
}
