package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/scheduler/framework"
	"knarr/controlplane/scheduler/plugins"
)

func testNode(name, cpu string, edit ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("10"),
		}},
	}
	for _, e := range edit {
		e(n)
	}
	return n
}

func testPod(name, cpu string, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "x", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
	for _, e := range edit {
		e(p)
	}
	return p
}

func zone(z string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = z }
}

func tainted(effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "k", Value: "v", Effect: effect})
	}
}

func selecting(labels map[string]string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = labels }
}

func onPort(n int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: n}} }
}

func near(key string, required bool, apart bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		term := corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
		weighted := []corev1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: term}}
		p.Spec.Affinity = &corev1.Affinity{}
		switch {
		case required && apart:
			p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}
		case required:
			p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}
		case apart:
			p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted}
		default:
			p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted}
		}
	}
}

func spread(key string, when corev1.UnsatisfiableConstraintAction) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: when,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		})
	}
}

func having(name corev1.ResourceName, amount string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Allocatable[name] = resource.MustParse(amount) }
}

func requesting(name corev1.ResourceName, amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(amount) }
}

func at(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func labelled(v string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{"app": v} }
}

// restartingAll makes use of a feature that a node must have declared.
func restartingAll(p *corev1.Pod) {
	p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
}

func declaring(features ...string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.DeclaredFeatures = features }
}

func TestDecide(t *testing.T) {
	nodes := func(n ...*corev1.Node) []*corev1.Node { return n }
	pods := func(p ...*corev1.Pod) []*corev1.Pod { return p }
	for _, c := range []struct {
		name   string
		nodes  []*corev1.Node
		placed []*corev1.Pod
		pod    *corev1.Pod
		want   string // a node, or the message
	}{
		{"no nodes", nil, nil, testPod("p", "1"), "no nodes available to schedule pods"},
		{"most free", nodes(testNode("a", "2"), testNode("b", "4")), nil, testPod("p", "1"), "b"},
		{"used", nodes(testNode("a", "4"), testNode("b", "4")), pods(testPod("x", "1", at("a"))), testPod("p", "1"), "b"},
		{"too big", nodes(testNode("a", "2"), testNode("b", "4")), pods(testPod("x", "3", at("b"))), testPod("p", "3"),
			"0/2 nodes are available: 2 Insufficient cpu."},
		{"device", nodes(testNode("a", "8"), testNode("b", "2", having("example.com/gpu", "1"))), nil, testPod("p", "1", requesting("example.com/gpu", "1")), "b"},
		{"no device left", nodes(testNode("a", "8"), testNode("b", "8", having("example.com/gpu", "1"))), pods(testPod("x", "1", at("b"), requesting("example.com/gpu", "1"))),
			testPod("p", "1", requesting("example.com/gpu", "1")), "0/2 nodes are available: 2 Insufficient example.com/gpu."},
		{"no such device", nodes(testNode("a", "8")), nil, testPod("p", "9", requesting("example.com/gpu", "1")),
			"0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient example.com/gpu."},
		{"none of a device", nodes(testNode("a", "8")), nil, testPod("p", "1", requesting("example.com/gpu", "0")), "a"},
		{"cordoned", nodes(testNode("a", "2", func(n *corev1.Node) { n.Spec.Unschedulable = true })), nil, testPod("p", "1"),
			"0/1 nodes are available: 1 node(s) were unschedulable."},
		{"tainted", nodes(testNode("a", "2", tainted(corev1.TaintEffectNoExecute))), nil, testPod("p", "1"),
			"0/1 nodes are available: 1 node(s) had untolerated taint(s)."},
		{"tolerated", nodes(testNode("a", "2", tainted(corev1.TaintEffectNoSchedule))), nil,
			testPod("p", "1", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }), "a"},
		{"softly tainted", nodes(testNode("a", "8", tainted(corev1.TaintEffectPreferNoSchedule)), testNode("b", "2")), nil, testPod("p", "1"), "b"},
		{"selector", nodes(testNode("a", "2"), testNode("b", "4")), nil, testPod("p", "1", selecting(map[string]string{corev1.LabelHostname: "a"})), "a"},
		{"selects none", nodes(testNode("a", "2"), testNode("b", "4")), nil, testPod("p", "1", selecting(map[string]string{"no": "such"})),
			"0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."},
		{"ports", nodes(testNode("a", "8"), testNode("b", "2")), pods(testPod("x", "1", at("a"), onPort(80))), testPod("p", "1", onPort(80)), "b"},
		{"no port", nodes(testNode("a", "8")), pods(testPod("x", "1", at("a"), onPort(80))), testPod("p", "1", onPort(80)),
			"0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."},
		{"declared", nodes(testNode("a", "8"), testNode("b", "2", declaring("Another", "RestartAllContainersOnContainerExits"))), nil, testPod("p", "1", restartingAll), "b"},
		{"undeclared", nodes(testNode("a", "8"), testNode("b", "8", declaring("Another"))), nil, testPod("p", "1", restartingAll),
			"0/2 nodes are available: 2 node(s) didn't match Pod's required features."},
		{"first of its kind", nodes(testNode("a", "2", zone("1"))), nil, testPod("p", "1", near(corev1.LabelTopologyZone, true, false)), "a"},
		{"needs another kind", nodes(testNode("a", "2", zone("1"))), nil, testPod("p", "1", near(corev1.LabelTopologyZone, true, false), labelled("db")),
			"0/1 nodes are available: 1 node(s) didn't match pod affinity rules."},
		{"joins its zone", nodes(testNode("a", "2", zone("1")), testNode("b", "2", zone("1")), testNode("c", "8", zone("2"))),
			pods(testPod("x", "2", at("a"))), testPod("p", "1", near(corev1.LabelTopologyZone, true, false)), "b"},
		{"keeps apart", nodes(testNode("a", "8", zone("1")), testNode("b", "8", zone("1")), testNode("c", "2", zone("2"))),
			pods(testPod("x", "1", at("a"))), testPod("p", "1", near(corev1.LabelTopologyZone, true, true)), "c"},
		{"is kept apart", nodes(testNode("a", "8")), pods(testPod("x", "1", at("a"), near(corev1.LabelHostname, true, true))), testPod("p", "1"),
			"0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules."},
		{"prefers near", nodes(testNode("a", "4"), testNode("b", "4")), pods(testPod("x", "1", at("a"))), testPod("p", "1", near(corev1.LabelHostname, false, false)), "a"},
		{"prefers apart", nodes(testNode("a", "8"), testNode("b", "6")), pods(testPod("x", "100m", at("a"))), testPod("p", "1", near(corev1.LabelHostname, false, true)), "b"},
		{"is preferred near", nodes(testNode("a", "4"), testNode("b", "4")), pods(testPod("x", "1", at("a"), near(corev1.LabelHostname, false, false))), testPod("p", "1"), "a"},
		{"spread", nodes(testNode("a", "8", zone("1")), testNode("b", "2", zone("2"))), pods(testPod("x", "100m", at("a"))),
			testPod("p", "1", spread(corev1.LabelTopologyZone, corev1.DoNotSchedule)), "b"},
		{"cannot spread", nodes(testNode("a", "8", zone("1")), testNode("b", "1", zone("2"))), pods(testPod("x", "1", at("a"))),
			testPod("p", "2", spread(corev1.LabelTopologyZone, corev1.DoNotSchedule)),
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod topology spread constraints."},
		{"nowhere to spread", nodes(testNode("a", "8")), nil, testPod("p", "1", spread(corev1.LabelTopologyZone, corev1.DoNotSchedule)),
			"0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label)."},
		{"prefers to spread", nodes(testNode("a", "8", zone("1")), testNode("b", "7", zone("2"))), pods(testPod("x", "10m", at("a")), testPod("y", "10m", at("a"))),
			testPod("p", "1", spread(corev1.LabelTopologyZone, corev1.ScheduleAnyway)), "b"},
		{"image", nodes(testNode("a", "4"), testNode("b", "4", func(n *corev1.Node) {
			n.Status.Images = []corev1.ContainerImage{{Names: []string{"x:latest"}, SizeBytes: 1 << 30}}
		})), nil, testPod("p", "1"), "b"},
		{"daemon", nodes(testNode("a", "8"), testNode("b", "2"), testNode("c", "8")), nil, testPod("p", "3", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"b"}}}}},
			}}}
		}), "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]."},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := framework.NewCluster()
			s := newCore(k, plugins.Table(k, noSiblings{}, nil))
			for _, n := range c.nodes {
				k.SetNode(n)
			}
			for _, p := range c.placed {
				k.Place(k.NewPod(p), p.Spec.NodeName)
			}
			node, why := s.decide(k.NewPod(c.pod))
			got := ""
			if node != nil {
				got = node.Name
			} else {
				got = why.String()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestRemembersRightly places, moves and removes at random, and compares what
// a core that remembers decides with what one that never saw anything does.
func TestRemembersRightly(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	k := framework.NewCluster()
	s := newCore(k, plugins.Table(k, noSiblings{}, nil))
	kinds := [][]func(*corev1.Pod){
		nil, {labelled("db")}, {near(corev1.LabelHostname, true, true)}, {spread(corev1.LabelTopologyZone, corev1.DoNotSchedule)},
		{near(corev1.LabelTopologyZone, false, true), labelled("db")}, {near(corev1.LabelTopologyZone, true, false)},
		{restartingAll},
	}
	nodes := map[string]*corev1.Node{}
	var placed []*framework.Pod
	for i := range 600 {
		switch n := r.IntN(10); {
		case n == 0:
			node := testNode(fmt.Sprint("n", r.IntN(12)), fmt.Sprint(1+r.IntN(4)), zone(fmt.Sprint(r.IntN(3))))
			if r.IntN(4) == 0 {
				tainted(corev1.TaintEffectNoSchedule)(node)
			}
			if r.IntN(2) == 0 {
				declaring("RestartAllContainersOnContainerExits")(node)
			}
			nodes[node.Name] = node
			k.SetNode(node)
		case n == 1 && len(nodes) > 0:
			name := fmt.Sprint("n", r.IntN(12))
			delete(nodes, name)
			k.RemoveNode(name)
		case n < 4 && len(placed) > 0:
			j := r.IntN(len(placed))
			k.Displace(placed[j])
			k.Release(placed[j])
			placed = append(placed[:j], placed[j+1:]...)
		}
		fresh := framework.NewCluster()
		for _, n := range nodes {
			fresh.SetNode(n)
		}
		for _, p := range placed {
			fresh.Place(fresh.NewPod(p.Pod), p.Node.Name)
		}
		f := newCore(fresh, plugins.Table(fresh, noSiblings{}, nil))
		o := testPod(fmt.Sprint("p", i), "300m", kinds[r.IntN(len(kinds))]...)
		q := fresh.NewPod(o.DeepCopy())
		if _, err := trim(o); err != nil { // what is left of it decides the same
			t.Fatal(err)
		}
		p := k.NewPod(o)
		node, why := s.decide(p)
		other, whyNot := f.decide(q)
		if (node == nil) != (other == nil) || node == nil && why.String() != whyNot.String() {
			t.Fatalf("step %d: remembering %v %v, afresh %v %v", i, node, why, other, whyNot)
		}
		if node == nil {
			k.Release(p)
			continue
		}
		if a, b := best(s), best(f); a != b {
			t.Fatalf("step %d: best\n%s\nafresh\n%s", i, a, b)
		}
		k.Place(p, node.Name)
		placed = append(placed, p)
	}
	if len(placed) == 0 {
		t.Fatal("nothing was placed")
	}
}

// best lists the feasible nodes with the scores of the last decision.
func best(s *core) string {
	list := make([]string, len(s.feasible))
	for i, n := range s.feasible {
		list[i] = n.Name
		if len(s.feasible) > 1 {
			list[i] += fmt.Sprint("=", s.totals[i])
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}
