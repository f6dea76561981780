package kubeproxy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// vast is a Service of 315 ports at 315 addresses besides its own: 99,540 fronts.
func vast(ns, name string, i int) *corev1.Service {
	svc := service(name, fmt.Sprintf("10.43.1.%d", i))
	svc.Namespace = ns
	svc.CreationTimestamp = metav1.NewTime(time.Unix(1e9+int64(i), 0))
	for p := range int32(315) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Port: p + 1, Protocol: corev1.ProtocolTCP})
		svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, fmt.Sprintf("198.%d.%d.%d", i, p/250, p%250+1))
	}
	return svc
}

// TestServicesOfTooManyRules: Services that are each within their bound are not without one
// together. The oldest of a namespace get rules, the others say why they do not, those of
// other namespaces are as before, and where there is room again the next ones get theirs.
func TestServicesOfTooManyRules(t *testing.T) {
	d := &notebook{rules: map[cache.ObjectName]Rules{}}
	y, events := fedSyncer(t, d)
	sync := func(all bool, want ...string) {
		t.Helper()
		if err := y.sync(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		var have []string
		for name, r := range d.rules {
			if len(r.Fronts) > 0 {
				have = append(have, name.String())
			}
		}
		if slices.Sort(have); !slices.Equal(have, want) {
			t.Errorf("%v have rules, want %v", have, want)
		}
		seen := map[string]int{}
		for range len(events.Events) {
			seen[<-events.Events]++
		}
		for text := range seen {
			if want := "Warning FailedToWriteServiceRules This Service gets no rules on this node: there is no room beside older Services of its namespace: 100000 ports times addresses and endpoints are the most, without 16 of each Service"; text != want {
				t.Errorf("event %q", text)
			}
		}
	}
	put := func(svc *corev1.Service) {
		if err := y.proxy.services.GetStore().Add(svc); err != nil {
			t.Fatal(err)
		}
		y.pending.add(cache.MetaObjectToName(svc))
	}
	for i := range 4 {
		put(vast("tenant", fmt.Sprint("vast", i), 10+i))
	}
	small := service("small", "10.43.0.1", corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP})
	small.Namespace, small.CreationTimestamp = "tenant", metav1.NewTime(time.Unix(2e9, 0))
	put(small) // the newest, but it needs no more than is free
	put(vast("other", "vast", 20))
	sync(true, "other/vast", "tenant/small", "tenant/vast0")
	if len(y.refused) != 3 {
		t.Errorf("%d are set aside, want 3", len(y.refused))
	}
	// An event is written once, and none is tried again before something changes.
	writes := len(d.writes)
	for i := range 4 {
		y.pending.add(cache.NewObjectName("tenant", fmt.Sprint("vast", i)))
	}
	sync(false, "other/vast", "tenant/small", "tenant/vast0")
	for name, r := range y.refused {
		if r.timer != nil {
			t.Errorf("%s is tried again", name)
		}
	}
	if len(d.writes) != writes {
		t.Error("what is as before is written")
	}
	// The oldest goes, and what is an older one comes back.
	if err := y.proxy.services.GetStore().Delete(vast("tenant", "vast0", 10)); err != nil {
		t.Fatal(err)
	}
	y.pending.add(cache.NewObjectName("tenant", "vast0"))
	sync(false, "other/vast", "tenant/small", "tenant/vast1")
	put(vast("tenant", "older", 9))
	sync(false, "other/vast", "tenant/older", "tenant/small")
	// Smaller, they all fit.
	for _, name := range []string{"older", "vast1", "vast2", "vast3"} {
		svc := y.proxy.service(cache.NewObjectName("tenant", name)).DeepCopy()
		svc.Spec.Ports = svc.Spec.Ports[:50]
		put(svc)
	}
	sync(false, "other/vast", "tenant/older", "tenant/small", "tenant/vast1", "tenant/vast2", "tenant/vast3")
	if len(y.refused) != 0 {
		t.Errorf("%d are set aside at the end", len(y.refused))
	}
}

// TestHeadlessServicesHaveNoBound: what gets no rules anyway takes no room.
func TestHeadlessServicesHaveNoBound(t *testing.T) {
	y, events := fedSyncer(t, &choosy{})
	svc, all := manyPorts(20_000, 5)
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	y.put(t, 0, svc, "10.1.0.1")
	for _, s := range all {
		if err := y.proxy.slices.GetStore().Update(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := y.sync(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if len(events.Events)+len(y.refused)+len(y.budget.namespaces) != 0 {
		t.Errorf("%d events, %d set aside, %d namespaces have a budget", len(events.Events), len(y.refused), len(y.budget.namespaces))
	}
}

// TestBudget: whatever comes and goes in whatever order, those have room that would have it
// if all came at once, and who is turned is listed.
func TestBudget(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	type member struct {
		created int64
		pairs   int
	}
	grown, members, known := newBudget(), map[cache.ObjectName]member{}, map[cache.ObjectName]bool{}
	grown.bounds.namespace, grown.bounds.node = 20, 50
	refused := map[string]int{}
	for range 5000 {
		looked := map[cache.ObjectName]bool{} // at anyway
		for range 1 + random.IntN(4) {
			name := cache.NewObjectName(fmt.Sprint("ns", random.IntN(5)), fmt.Sprint("s", random.IntN(6)))
			m := member{int64(random.IntN(4)), freePairs + random.IntN(22) - 1}
			looked[name] = true
			if random.IntN(3) == 0 {
				delete(members, name)
				grown.set(name, 0, "", 0)
				continue
			}
			members[name] = m
			grown.set(name, m.created, name.String(), m.pairs)
		}
		turned := map[cache.ObjectName]Rules{}
		grown.settle(turned)
		whole := newBudget()
		whole.bounds = grown.bounds
		for name, m := range members {
			whole.set(name, m.created, name.String(), m.pairs)
		}
		whole.settle(map[cache.ObjectName]Rules{})
		used, all := map[string]int{}, 0
		for name, m := range members {
			got, want := grown.refusal(name), whole.refusal(name)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%s: %v, want %v", name, got, want)
			}
			if _, is := turned[name]; (got != nil) != known[name] && !is && !looked[name] {
				t.Fatalf("%s is not listed: %v", name, got)
			}
			known[name] = got != nil
			if got != nil {
				refused[strings.Fields(got.Error())[8]]++
				continue
			}
			used[name.Namespace] += max(0, m.pairs-freePairs)
			all += max(0, m.pairs-freePairs)
		}
		if all > 50 || slices.Max(append(slices.Collect(maps.Values(used)), 0)) > 20 {
			t.Fatalf("%v in all %d", used, all)
		}
	}
	if refused["its"] == 0 || refused["this"] == 0 {
		t.Errorf("never over a bound: %v", refused)
	}
	for name := range members {
		grown.set(name, 0, "", 0)
	}
	grown.settle(map[cache.ObjectName]Rules{})
	if len(grown.namespaces)+len(grown.changed)+grown.granted+grown.all.live != 0 || len(grown.all.demands) > 16 {
		t.Errorf("%d namespaces and %d pairs are left", len(grown.namespaces), grown.granted)
	}
}

// largest are Services as a cluster of upstream's limits may have: 10,000 of three ports in both
// families behind a load balancer, with 150,000 pods.
func largest(b *budget) {
	for i := range 10_000 {
		const pods = 15
		pairs := 3*(2+2) + 2*3 + 3*2*pods
		b.set(cache.NewObjectName(fmt.Sprint("ns", i/200), fmt.Sprint("s", i)), int64(i), fmt.Sprint(i), pairs)
	}
}

// TestLargestCluster: none of a cluster within upstream's limits is over a bound.
func TestLargestCluster(t *testing.T) {
	for name, fill := range map[string]func(*budget){
		"10,000 Services with 150,000 pods": largest,
		"5,000 Services with 3,000 pods in one namespace": func(b *budget) {
			for i := range 5000 {
				b.set(cache.NewObjectName("ns", fmt.Sprint("s", i)), int64(i), fmt.Sprint(i), 3*(2+2)+2*3+4)
			}
		},
		"44,000 small Services in one namespace": func(b *budget) {
			for i := range 44_000 {
				b.set(cache.NewObjectName("ns", fmt.Sprint("s", i)), int64(i), fmt.Sprint(i), 1+1+4)
			}
		},
	} {
		b, turned := newBudget(), map[cache.ObjectName]Rules{}
		fill(b)
		if b.settle(turned); len(turned) != 0 {
			t.Errorf("%s: %d have no room", name, len(turned))
		}
	}
}

// BenchmarkBudget is a change of one Service among 10,000, where nothing is over a bound, and
// where a namespace of as many is over its own.
func BenchmarkBudget(b *testing.B) {
	for _, over := range []bool{false, true} {
		b.Run(fmt.Sprint("over=", over), func(b *testing.B) {
			g, turned := newBudget(), map[cache.ObjectName]Rules{}
			largest(g)
			for i := range 10_000 {
				if over {
					g.set(cache.NewObjectName("hostile", fmt.Sprint("s", i)), int64(i), fmt.Sprint(i), 100)
				}
			}
			g.settle(turned)
			for i := 0; b.Loop(); i++ {
				g.set(cache.NewObjectName("ns0", "s0"), 0, "0", 100+i%2)
				g.settle(turned)
			}
		})
	}
}
