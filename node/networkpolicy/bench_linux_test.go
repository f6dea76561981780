package networkpolicy

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"
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
	return slimPod(p)
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

// BenchmarkPodToRule is the whole way, to the kernel's rules.
func BenchmarkPodToRule(b *testing.B) {
	newSegment(b)
	l := newLive(b)
	l.world = crowded(b)
	began := time.Now()
	if _, err := l.k.Apply(l.index.whole(), true); err != nil {
		b.Fatal(err)
	}
	b.Logf("%d sets, %d chains, cold: %v", len(l.index.sets), len(l.index.active), time.Since(began).Round(time.Millisecond))
	var worst time.Duration
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		p := crowdedPod(7, 50, fmt.Sprint("app", i%2))
		w := l.world
		w.index.setPod(cache.MetaObjectToName(p), podOf(p, thisNode))
		if _, err := l.k.Apply(w.index.take(), false); err != nil {
			b.Fatal(err)
		}
		worst = max(worst, time.Since(began))
	}
	b.ReportMetric(float64(worst.Microseconds())/1000, "worst-ms")
}
