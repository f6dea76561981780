package networkpolicy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/informer"
)

// crowded is a cluster of 10,000 pods in 100 namespaces, 200 of them on this
// node, and 1,000 policies, each with a selector of its own, of which all match
// pods here.
func crowded(tb testing.TB) *world {
	w := &world{t: tb, index: newIndex(thisNode), kernel: newFake(), pods: map[cache.ObjectName]*corev1.Pod{}}
	for n := range 100 {
		ns := fmt.Sprint("ns", n)
		w.index.setNamespace(ns, map[string]string{"kubernetes.io/metadata.name": ns}, true)
		for i := range 100 {
			w.setPod(crowdedPod(n, i, fmt.Sprint("app", i%10)))
		}
		for i := range 10 {
			w.policy(ns, fmt.Sprint("p", i), ingress(selects("app", fmt.Sprint("app", i%2)),
				networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{
					peer(selects("app", fmt.Sprint("app", i)), nil), peer(selects("app", "app3"), selects("kubernetes.io/metadata.name", ns)),
				}, Ports: []networkingv1.NetworkPolicyPort{port(tcp, 80)}}))
		}
	}
	return w
}

func crowdedPod(n, i int, app string) *corev1.Pod {
	p := makePod(fmt.Sprint("ns", n), fmt.Sprint("pod", i), fmt.Sprintf("10.%d.%d.%d", 42+n/200, n, i+1))
	p.Labels = map[string]string{"app": app}
	if i >= 2 {
		p.Spec.NodeName = "n2"
	}
	return informer.SlimPod(p)
}

// BenchmarkPodChange is the index's part: a pod gets other labels.
func BenchmarkPodChange(b *testing.B) {
	w := crowded(b)
	w.index.whole()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p := crowdedPod(7, 50, fmt.Sprint("app", (i+1)%2))
		w.index.setPod(cache.MetaObjectToName(p), podOf(p, thisNode))
		if c := w.index.take(); c.empty() {
			b.Fatal("nothing changed")
		}
	}
}

// BenchmarkPodToRule is the whole way, to the kernel's rules: a pod elsewhere gets labels
// by which it may, or may not, reach a pod here. Connections tell that the rules say so.
func BenchmarkPodToRule(b *testing.B) {
	s, l := newSegment(b), newLive(b)
	l.world = crowded(b)
	s.attach("server", "10.42.0.2") // pod1 of ns0
	s.attach("client", "10.42.0.51")
	began := time.Now()
	if _, err := l.k.Apply(l.index.whole(), true); err != nil {
		b.Fatal(err)
	}
	b.Logf("%d sets, %d chains, cold: %v", len(l.index.sets), len(l.index.active), time.Since(began).Round(time.Millisecond))
	const at = "10.42.0.2:80"
	change := func(app string) time.Duration {
		began := time.Now()
		p := crowdedPod(0, 50, app)
		l.index.setPod(cache.MetaObjectToName(p), podOf(p, thisNode))
		if _, err := l.k.Apply(l.index.take(), false); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
	var took []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		took = append(took, change("app0"), change("app1"))
		if !s.reaches("client", "tcp", at, surely) {
			b.Fatal("a pod that policies let through has no answer")
		}
	}
	change("app0")
	if s.reaches("client", "tcp", at, soon) {
		b.Fatal("a pod that no policy lets through has an answer")
	}
	slices.Sort(took)
	for _, q := range []int{50, 99} {
		b.ReportMetric(float64(took[(len(took)-1)*q/100].Microseconds())/1000, fmt.Sprintf("p%d-ms", q))
	}
}
