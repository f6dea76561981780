package plugins

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/scheduler/framework"
)

// near is whether two nodes have the same value of a label.
func near(a, b *framework.Node, key string) bool {
	v, ok := a.Object.Labels[key]
	w, too := b.Object.Labels[key]
	return ok && too && v == w
}

// slowly is what InterPodAffinity says and how it rates, worked out pod by pod.
func slowly(c *framework.Cluster, p *framework.Pod, n *framework.Node, placed []*framework.Pod) (st *framework.Status, score int64) {
	for _, t := range p.AntiAffinity {
		for _, o := range placed {
			if t.Matches(o.Shape, c) && near(n, o.Node, t.TopologyKey) {
				st = nearUnwanted
			}
		}
	}
	for _, o := range placed {
		for _, t := range o.AntiAffinity {
			if st == nil && t.Matches(p.Shape, c) && near(n, o.Node, t.TopologyKey) {
				st = unwantedThere
			}
		}
		for _, t := range o.Affinity {
			if t.Matches(p.Shape, c) && near(n, o.Node, t.TopologyKey) {
				score++
			}
		}
		for _, t := range o.Preferred {
			if t.Matches(p.Shape, c) && near(n, o.Node, t.TopologyKey) {
				score += t.Weight
			}
		}
		for _, t := range p.Preferred {
			if t.Matches(o.Shape, c) && near(n, o.Node, t.TopologyKey) {
				score += t.Weight
			}
		}
	}
	all := func(s *framework.Shape) bool {
		return !slices.ContainsFunc(p.Affinity, func(t *framework.Term) bool { return !t.Matches(s, c) })
	}
	first, close := all(p.Shape), true
	for _, t := range p.Affinity {
		if _, ok := n.Object.Labels[t.TopologyKey]; !ok {
			return farFromNeeded, score
		}
		here := false
		for _, o := range placed {
			if all(o.Shape) {
				here = here || near(n, o.Node, t.TopologyKey)
				first = first && !near(o.Node, o.Node, t.TopologyKey)
			}
		}
		close = close && here
	}
	if !close && !first {
		return farFromNeeded, score
	}
	return st, score
}

// TestAffinityAsPodByPod compares counts per topology, on pods with several terms of
// the same and of different topologies, with a look at each pod.
func TestAffinityAsPodByPod(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	answers := map[*framework.Status]int{}
	for range 60 {
		c := framework.NewCluster()
		for i := range 6 {
			l := map[string]string{"host": fmt.Sprint(i), "zone": fmt.Sprint(i % 3)}
			if i == 5 {
				delete(l, "zone")
			}
			c.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: l}})
		}
		term := func() corev1.PodAffinityTerm {
			op := []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn}[r.IntN(3)]
			return corev1.PodAffinityTerm{TopologyKey: []string{"host", "zone", "zone", "none"}[r.IntN(4)],
				LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: op, Values: []string{fmt.Sprint(r.IntN(4))}}}}}
		}
		some := func(odds int) (list []corev1.PodAffinityTerm) {
			for r.IntN(odds) == 0 {
				list = append(list, term())
			}
			return list
		}
		weighted := func() (list []corev1.WeightedPodAffinityTerm) {
			for _, t := range some(2) {
				list = append(list, corev1.WeightedPodAffinityTerm{Weight: 1 + r.Int32N(9), PodAffinityTerm: t})
			}
			return list
		}
		made := func(name string) *framework.Pod {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"app": fmt.Sprint(r.IntN(4))}}}
			p.Spec.Affinity = &corev1.Affinity{
				PodAffinity:     &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: some(3), PreferredDuringSchedulingIgnoredDuringExecution: weighted()},
				PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: some(5), PreferredDuringSchedulingIgnoredDuringExecution: weighted()},
			}
			return c.NewPod(p)
		}
		var placed []*framework.Pod
		for i := range 8 {
			p := made(fmt.Sprint("placed-", i))
			c.Place(p, fmt.Sprint("n", r.IntN(6)))
			placed = append(placed, p)
		}
		for i := range 30 {
			if k := r.IntN(len(placed)); i%10 == 9 && len(placed) > 2 {
				c.Displace(placed[k])
				c.Release(placed[k])
				placed = slices.Delete(placed, k, k+1)
			}
			a, p := &InterPodAffinity{cluster: c}, made(fmt.Sprint("p", i))
			compare := func(what string, with []*framework.Pod) {
				t.Helper()
				for _, n := range c.Nodes {
					want, _ := slowly(c, p, n, with)
					got := a.Filter(p, n)
					if got != nil && want != nil && (got == farFromNeeded) == (want == farFromNeeded) {
						want = got // of two reasons either will do
					}
					if got != want {
						t.Fatalf("%s: %s says %v, want %v\n%v", what, n.Name, got, want, p.Pod)
					}
					answers[got]++
				}
			}
			skip, _ := a.PreFilter(p)
			compare("as it is", placed)
			if !skip {
				gone := placed[r.IntN(len(placed))]
				a.Simulate(p, gone, gone.Node, -1)
				compare("with one gone", slices.DeleteFunc(slices.Clone(placed), func(o *framework.Pod) bool { return o == gone }))
				a.Simulate(p, gone, gone.Node, 1)
				compare("with it back", placed)
			}
			a.PreScore(p, nil)
			for _, n := range c.Nodes {
				if _, want := slowly(c, p, n, placed); a.Score(p, n) != want {
					t.Fatalf("%s rates %d, want %d", n.Name, a.Score(p, n), want)
				}
			}
			if len(a.affinity) > 3 || len(a.anti) > 3 || len(a.existing) > 3 || len(a.wishes) > 3 {
				t.Fatalf("%d, %d, %d and %d counts of three topologies", len(a.affinity), len(a.anti), len(a.existing), len(a.wishes))
			}
			c.Release(p)
		}
	}
	for _, st := range []*framework.Status{nil, farFromNeeded, nearUnwanted, unwantedThere} {
		if answers[st] < 20 {
			t.Errorf("%v was said %d times only", st, answers[st])
		}
	}
}
