package networkpolicy

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// manyPeers are rules with as many selectors, no two alike.
func manyPeers(name string, n int) networkingv1.NetworkPolicyIngressRule {
	var peers []networkingv1.NetworkPolicyPeer
	for i := range n {
		peers = append(peers, peer(selects(name, fmt.Sprint(i)), nil))
	}
	return from(peers...)
}

// TestTooManyPolicies: what the policies of a namespace are in the kernel is
// bounded; those beyond allow nothing, say so, and hold once there is room.
func TestTooManyPolicies(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		w.policy("x", fmt.Sprintf("large%02d", i), ingress(selects("pod", "a"), manyPeers(fmt.Sprint("l", i), maxMatches)))
	}
	w.policy("x", "late", ingress(selects("pod", "b"), from()))
	w.write()
	rules := 0
	for _, ch := range w.kernel.chains {
		rules += len(ch.Rules) + len(ch.Jumps)
	}
	if rules+len(w.kernel.sets) > maxNamespace+20 || rules == 0 {
		t.Errorf("%d rules and %d sets of one namespace", rules, len(w.kernel.sets))
	}
	a, b, y := addr("10.42.0.10"), addr("10.42.0.11"), addr("10.42.0.20")
	if w.kernel.verdicts[Ingress][a] == "" || w.kernel.verdicts[Ingress][b] == "" {
		t.Error("a pod is open that too many policies select")
	}
	if len(w.index.full) == 0 {
		t.Error("no policy is told that there is no room for it")
	}
	port80 := PortRange{6, 80, 80}
	for i := range 20 {
		w.index.setPolicy(objectName("x", fmt.Sprintf("large%02d", i)), nil)
	}
	w.write()
	if !w.kernel.allows(y, b, port80) || len(w.index.full) != 0 || w.index.namespaces["x"].size > 5 {
		t.Errorf("with room again: %d wait, size %d", len(w.index.full), w.index.namespaces["x"].size)
	}
}

// TestTooManyPoliciesOfOnePod: a packet passes a bounded number of jumps, whatever
// the policies are.
func TestTooManyPoliciesOfOnePod(t *testing.T) {
	w := empty(t)
	for i := range maxNamespace + 100 {
		w.policy("x", fmt.Sprint("p", i), ingress(selects("pod", "a")))
	}
	w.setPod(makePod("x", "a", "10.42.0.10"))
	if got := w.isolated(); len(got) != 1 {
		t.Fatalf("%v are isolated", got)
	}
	if n := len(w.kernel.chains[w.kernel.verdicts[Ingress][addr("10.42.0.10")]].Jumps); n > maxNamespace {
		t.Errorf("%d jumps", n)
	}
}

// TestTooManySets: all namespaces together have a bounded number of sets.
func TestTooManySets(t *testing.T) {
	w := empty(t)
	for n := range 30 {
		ns := fmt.Sprint("ns", n)
		w.setPod(makePod(ns, "a", fmt.Sprintf("10.42.1.%d", n)))
		for i := range 4 {
			w.policy(ns, fmt.Sprint("p", i), ingress(selects("pod", "a"), manyPeers(fmt.Sprint("l", i), maxMatches)))
		}
	}
	if got := w.isolated(); len(got) != 30 {
		t.Errorf("%d are isolated, want 30", len(got))
	}
	if n := len(w.kernel.sets); n > maxSets || n < maxSets/2 {
		t.Errorf("%d sets", n)
	}
}

// TestIndexWithoutRoom: the kernel gets what fits and isolates the rest, whatever
// changes.
func TestIndexWithoutRoom(t *testing.T) {
	for seed := range uint64(40) {
		r := dice{rand.New(rand.NewPCG(seed, 8))}
		w := &world{t: t, index: newIndex(thisNode), kernel: newFake()}
		w.index.bounds.namespace, w.index.bounds.sets = 12, 10
		o := &objects{map[cache.ObjectName]*corev1.Pod{}, map[string]labels.Set{}, map[cache.ObjectName]*networkingv1.NetworkPolicy{}}
		waited := 0
		for range 60 {
			for range 1 + r.IntN(6) {
				r.change(w, o)
			}
			w.write()
			waited += len(w.index.full)
			for name, p := range w.index.pods {
				for _, d := range directions {
					isolated := false
					for _, pol := range p.policies {
						isolated = isolated || pol.isolates[d]
					}
					for _, a := range p.addrs {
						if w.index.owner[a] == p && (w.kernel.verdicts[d][a] != "") != isolated {
							t.Fatalf("seed %d: %s is isolated in %s: %v", seed, name, d, !isolated)
						}
					}
				}
			}
		}
		anew := newFake()
		if _, err := anew.Apply(w.index.whole(), true); err != nil {
			t.Fatal(err)
		}
		w.write()
		w.kernel.sameAs(t, anew)
		if waited == 0 {
			t.Errorf("seed %d: there was always room", seed)
		}
		for name := range o.policies {
			w.index.setPolicy(name, nil)
		}
		w.write()
		if ix := w.index; len(ix.full) != 0 || len(ix.sets) != 1 || len(ix.active) != 0 {
			t.Errorf("seed %d: %d wait, %d sets, %d chains are left", seed, len(ix.full), len(ix.sets), len(ix.active))
		}
	}
}
