package kubeproxy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// However the rules came to be, the kernel holds what a fresh start would write.
func TestRandomChanges(t *testing.T) {
	inNamespace(t)
	random := rand.New(rand.NewPCG(5, 6))
	grown, err := newNFTables("knarr-grown", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer grown.Close()
	want := map[cache.ObjectName]Rules{}
	write(t, grown, want, true)
	for round := range 30 {
		for range 10 {
			changes := map[cache.ObjectName]Rules{}
			for range 1 + random.IntN(4) {
				i := random.IntN(12)
				name := cache.NewObjectName("ns", fmt.Sprint("s", i))
				changes[name] = randomRules(random, i)
				want[name] = changes[name]
			}
			write(t, grown, changes, false)
		}
		if round%10 == 9 { // a restart of the process
			if err := grown.Close(); err != nil {
				t.Fatal(err)
			}
			if grown, err = newNFTables("knarr-grown", nil); err != nil {
				t.Fatal(err)
			}
			write(t, grown, want, true)
		}
		fresh, err := newNFTables("knarr-fresh", nil)
		if err != nil {
			t.Fatal(err)
		}
		write(t, fresh, want, true)
		for i := range grown.tables {
			a, b := contents(t, grown.tables[i]), contents(t, fresh.tables[i])
			for set := range b {
				if !slices.Equal(a[set], b[set]) {
					t.Errorf("%s after %d changes has\n%v\nand would have\n%v", set, round*10, a[set], b[set])
				}
			}
		}
		if err := fresh.Close(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
}

// randomRules are those of a Service of either family, or both, or none.
func randomRules(random *rand.Rand, i int) Rules {
	if random.IntN(5) == 0 {
		return plan(nil, nil, host{})
	}
	svc := service(fmt.Sprint("s", i), fmt.Sprint("10.43.0.", i+1), corev1.ServicePort{Port: 80, NodePort: int32(30000 + i), Protocol: corev1.ProtocolTCP})
	if random.IntN(2) == 0 {
		svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, fmt.Sprint("fd43::", i+1))
	}
	if random.IntN(3) == 0 {
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	if random.IntN(3) == 0 {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if random.IntN(3) == 0 {
		svc.Spec.ExternalIPs = []string{fmt.Sprint("192.0.2.", i+1)}
	}
	var addrs, addrs6 []string
	for e := range 6 {
		if random.IntN(2) == 0 {
			addrs, addrs6 = append(addrs, fmt.Sprintf("10.1.%d.%d", i, e+1)), append(addrs6, fmt.Sprintf("fd01::%d:%d", i, e+1))
		}
	}
	if random.IntN(3) == 0 {
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprint("198.51.100.", i+1)}, {IP: fmt.Sprint("fd02::", i+1)}}
		for range random.IntN(4) {
			svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, fmt.Sprintf("10.%d.0.0/%d", random.IntN(4), 8+random.IntN(16)), fmt.Sprintf("fd0%d::/16", random.IntN(4)))
		}
	}
	return plan(svc, eps(slice(svc.Name, 8080, addrs...), six(svc.Name, addrs6...)), host{name: "n2"})
}

// contents are the elements of a family's sets, by set, less what depends on how
// they came there: the slots of endpoints, and the chains of classes that no
// front is of.
func contents(t *testing.T, f *family) map[string][]string {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for class, n := range f.classes {
		used[string(class.key())] = n > 0
	}
	all := map[string][]string{}
	for _, set := range []struct {
		name string
		*nftables.Set
	}{
		{"services", f.services}, {"node-ports", f.nodePorts}, {"inside", f.inside}, {"inside-ports", f.insidePorts},
		{"classes", f.classSet}, {"endpoints", f.endpoints}, {"living", f.living}, {"hairpin", f.hairpin}, {"cluster-ips", f.clusterSet},
		{"firewall", f.firewall}, {"ranges", f.ranges},
	} {
		elements, err := c.GetSetElements(set.Set)
		if err != nil {
			t.Fatal(err)
		}
		lines := []string{}
		for _, e := range elements {
			switch {
			case set.name == "classes" && !used[string(e.Key)]:
				continue
			case set.name == "classes": // leads to a chain of this generation
				lines = append(lines, fmt.Sprintf("%x", e.Key))
			case set.name == "endpoints":
				lines = append(lines, fmt.Sprintf("%x: %x", e.Key[:4], e.Val))
			default:
				lines = append(lines, fmt.Sprintf("%x-%x: %x", e.Key, e.KeyEnd, e.Val))
			}
		}
		all[set.name] = slices.Sorted(slices.Values(lines))
	}
	return all
}

// Chains of classes are shared, and deleted when many are not used.
func TestIdleClasses(t *testing.T) {
	inNamespace(t)
	k, err := newNFTables("knarr-test", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	write(t, k, nil, true)
	svc := service("web", "10.43.0.7", corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP})
	for n := range 2*idleClasses + 10 {
		var addrs []string
		for i := range n + 1 {
			addrs = append(addrs, fmt.Sprint("10.1.1.", i))
		}
		write(t, k, one("web", plan(svc, eps(slice("web", 8080, addrs...)), host{name: "n1"})), false)
		if f := k.tables[0]; len(f.classes) > idleClasses+1 || kernelElements(t, f.classSet) != len(f.classes) {
			t.Fatalf("%d classes after %d numbers of endpoints, and in the kernel %d", len(f.classes), n+1, kernelElements(t, f.classSet))
		}
	}
	if chains := len(slices.Collect(maps.Keys(chainsOf(t, k.tables[0])))); chains > idleClasses+10 {
		t.Errorf("%d chains", chains)
	}
}

func chainsOf(t *testing.T, f *family) map[string]bool {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.listing(c)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, ch := range l.chains {
		names[ch.Name] = true
	}
	return names
}
