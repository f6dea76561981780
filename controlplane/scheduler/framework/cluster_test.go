package framework

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

func pod(name string, l map[string]string, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: l}}
	p.Spec.Containers = []corev1.Container{{Image: "x"}}
	for _, e := range edit {
		e(p)
	}
	return p
}

func TestShapes(t *testing.T) {
	c := NewCluster()
	web := map[string]string{"app": "web"}
	a, b := c.NewPod(pod("a", web)), c.NewPod(pod("b", web))
	if a.Shape != b.Shape {
		t.Error("pods of one template have two shapes")
	}
	db := c.NewPod(pod("c", map[string]string{"app": "db"}))
	if db.Shape == a.Shape || db.Local != a.Local {
		t.Error("labels make another shape, with the same local part")
	}
	tolerant := c.NewPod(pod("d", web, func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}))
	if tolerant.Local == a.Local {
		t.Error("a toleration makes no difference")
	}
	for _, p := range []*Pod{a, b, db, tolerant} {
		c.Release(p)
	}
	if len(c.shapes) != 0 {
		t.Errorf("%d shapes are left", len(c.shapes))
	}
}

func TestTallies(t *testing.T) {
	c := NewCluster()
	web := map[string]string{"app": "web"}
	term := NewTerm("host", []string{"default"}, nil, labels.SelectorFromSet(web))
	before := c.Tally(false, term)
	a, b := c.NewPod(pod("a", web)), c.NewPod(pod("b", web))
	going := c.NewPod(pod("c", web, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }))
	c.Place(a, "n")
	c.Place(b, "n")
	c.Place(going, "n")
	c.Place(c.NewPod(pod("d", map[string]string{"app": "db"})), "n")
	living := c.Tally(true, term)
	slot := c.Node("n").Slot
	if before.Of(slot) != 3 || living.Of(slot) != 2 {
		t.Errorf("counted %d and %d, want 3 and 2", before.Of(slot), living.Of(slot))
	}
	c.Displace(a)
	c.Displace(going)
	if before.Of(slot) != 1 || living.Of(slot) != 1 {
		t.Errorf("then %d and %d, want 1 and 1", before.Of(slot), living.Of(slot))
	}
	c.Displace(b)
	if len(before.Nodes)+len(living.Nodes) != 0 {
		t.Error("nodes without pods are kept")
	}

	spaces := NewTerm("host", nil, labels.SelectorFromSet(labels.Set{"team": "a"}), labels.Everything())
	all := c.Tally(false, spaces)
	if all.Of(slot) != 0 {
		t.Error("counts a namespace it does not select")
	}
	c.SetNamespace("default", labels.Set{"team": "a"})
	if all.Of(slot) != 1 {
		t.Error("does not count a namespace it has come to select")
	}
}

// TestResourcesOfNodesOnly: names of resources that only pods have are not kept, and
// pods count in full once a node has them.
func TestResourcesOfNodesOnly(t *testing.T) {
	c := NewCluster()
	wants := func(amount int64, names ...corev1.ResourceName) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			l := corev1.ResourceList{}
			for _, n := range names {
				l[n] = *resource.NewQuantity(amount, resource.DecimalSI)
			}
			p.Spec.Containers[0].Resources.Requests = l
		}
	}
	for i := range 5 {
		var names []corev1.ResourceName
		for k := range 1000 {
			names = append(names, corev1.ResourceName(fmt.Sprint("example.com/", i, "-", k)))
		}
		p := c.NewPod(pod(fmt.Sprint(i), nil, wants(int64(i), names...)))
		if len(p.Asks) != firstExtended || len(p.Nowhere) != 1000*min(i, 1) {
			t.Fatalf("asks for %d and %d", len(p.Asks), len(p.Nowhere))
		}
		c.Place(p, "n")
		c.Displace(p)
		c.Release(p)
	}
	if len(c.resources.names) != firstExtended || len(c.shapes) != 0 {
		t.Fatalf("%d names and %d shapes are kept", len(c.resources.names), len(c.shapes))
	}

	gpu := wants(2, "example.com/gpu", "example.com/none")
	early, waits := c.NewPod(pod("early", nil, gpu)), c.NewPod(pod("waits", nil, gpu))
	c.Place(early, "n")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	c.SetNode(node)
	node = node.DeepCopy()
	node.Status.Allocatable = corev1.ResourceList{"example.com/gpu": resource.MustParse("4")}
	if did := c.SetNode(node); did != NodeAllocatable {
		t.Errorf("did %b", did)
	}
	n := c.Node("n")
	late := c.NewPod(pod("late", nil, gpu))
	for _, p := range []*Pod{early, waits, late} {
		if p.Shape != early.Shape || p.Asks.At(firstExtended) != 2 || len(p.Nowhere) != 1 || p.Nowhere[0].Name != "example.com/none" {
			t.Errorf("%s asks for %v, %v of what no node has", p.Pod.Name, p.Asks, p.Nowhere)
		}
	}
	c.Place(late, "n")
	if n.Used.At(firstExtended) != 4 || n.Allocatable.At(firstExtended) != 4 {
		t.Errorf("%d used", n.Used.At(firstExtended))
	}
	c.Displace(early)
	c.Displace(late)
	if n.Used.At(firstExtended) != 0 {
		t.Errorf("then %d used", n.Used.At(firstExtended))
	}
}

// TestOwners: owners leave nothing behind, and pods that thousands of terms select do
// not each remember all of them.
func TestOwners(t *testing.T) {
	c := NewCluster()
	const terms = 1000
	owning := func(name string) *Pod {
		p := c.NewPod(pod(name, nil, func(p *corev1.Pod) {
			var list []corev1.WeightedPodAffinityTerm
			for k := range terms {
				list = append(list, corev1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: "host",
					LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
						{Key: "k", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprint(name, "-", k)}},
					}}}})
			}
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: list}}
		}))
		c.Place(p, "n")
		return p
	}
	inPlace := func(want int) {
		t.Helper()
		list := c.owners.byLabel[""]
		if len(list) != want || len(c.owners.byKey) != want {
			t.Fatalf("%d and %d owners, want %d", len(list), len(c.owners.byKey), want)
		}
		for i, o := range list {
			if o.in != i || o.Term == nil {
				t.Fatalf("the owners at %d take themselves to be at %d", i, o.in)
			}
		}
	}
	selected := c.NewPod(pod("selected", map[string]string{"app": "web"}))
	few := owning("few")
	var list []*Owners
	for _, p := range []*Pod{few, owning("b"), owning("c")} {
		defer c.Release(p)
		list = c.OwnersMatching(selected.Shape)
		if len(selected.matching.list) > maxMatching {
			t.Errorf("%d owners are remembered", len(selected.matching.list))
		}
	}
	inPlace(3 * terms)
	if len(list) != 3*terms {
		t.Errorf("%d owners match", len(list))
	}
	c.Displace(few)
	inPlace(2 * terms)
	if n := len(c.OwnersMatching(selected.Shape)); n != 2*terms {
		t.Errorf("then %d match", n)
	}
	if n := len(c.OwnersMatching(c.NewPod(pod("other", map[string]string{"k": "b-7"})).Shape)); n != 2*terms-1 {
		t.Errorf("%d match a pod that one does not select", n)
	}
	for _, uid := range []types.UID{"b", "c"} {
		c.Displace(c.Pod(uid))
	}
	if len(c.owners.byKey)+len(c.owners.byLabel)+len(c.OwnersMatching(selected.Shape)) != 0 {
		t.Error("owners are left of pods that are gone")
	}
}

// TestTopologiesOfNodesOnly: a label that no node has makes no topology, and one that
// the last node loses leaves none.
func TestTopologiesOfNodesOnly(t *testing.T) {
	c := NewCluster()
	node := func(name string, l map[string]string) *Node {
		c.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: l}})
		return c.Node(name)
	}
	a := node("a", map[string]string{"host": "a", "zone": "1"})
	for i := range 1000 {
		if topology := c.Topology(fmt.Sprint("key-", i)); topology.Of(a) != -1 || topology.Size != 0 {
			t.Fatal("a node has a label that it does not have")
		}
	}
	if len(c.topologies) != 0 {
		t.Errorf("%d topologies are kept of labels that no node has", len(c.topologies))
	}
	if zone := c.Topology("zone"); zone.Of(a) != 0 || zone.Size != 1 {
		t.Error("a node is in no zone")
	}
	b := node("b", map[string]string{"zone": "2"})
	node("a", map[string]string{"host": "a"})
	if zone := c.Topology("zone"); zone.Of(a) != -1 || zone.Of(b) < 0 {
		t.Error("a zone does not follow its label")
	}
	c.Topology("host")
	c.RemoveNode("b")
	c.RemoveNode("a")
	if len(c.topologies)+len(c.nodeLabels) != 0 {
		t.Errorf("of no nodes %d topologies and %d labels are left", len(c.topologies), len(c.nodeLabels))
	}
	if c.Topology("zone").Size != 0 {
		t.Error("a zone is left without nodes")
	}
	if a = node("a", map[string]string{"zone": "3"}); c.Topology("zone").Of(a) != 0 {
		t.Error("a zone does not come back")
	}
}

// TestForgetsLargeTallies: tallies of terms that would fill the memory are not kept,
// nor do pods that were counted by them hold them.
func TestForgetsLargeTallies(t *testing.T) {
	c := NewCluster()
	var kept []*Pod
	for i := range 20 {
		p := c.NewPod(pod(fmt.Sprint("large-", i), nil, func(p *corev1.Pod) {
			var terms []corev1.PodAffinityTerm
			for k := range 3000 {
				terms = append(terms, corev1.PodAffinityTerm{TopologyKey: "host", LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: fmt.Sprint("k", i, "-", k), Operator: metav1.LabelSelectorOpDoesNotExist},
				}}})
			}
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
		}))
		if p.Err != nil {
			t.Fatal(p.Err)
		}
		c.Tally(false, p.Affinity...)
		c.Release(p)
		small := c.NewPod(pod(fmt.Sprint("small-", i), map[string]string{"app": fmt.Sprint(i)}))
		c.Place(small, "n")
		if len(small.tallies.list) == 0 {
			t.Fatal("not counted")
		}
		kept = append(kept, small)
	}
	size := 0
	for _, ta := range c.tallies.byKey {
		for _, term := range ta.terms {
			size += term.size
		}
	}
	if size != c.tallies.size || size > maxTallyBytes || len(c.tallies.byKey) == 20 {
		t.Errorf("tallies of %d bytes are kept, counted as %d", size, c.tallies.size)
	}
	for _, p := range kept {
		for _, ta := range p.tallies.list[:cap(p.tallies.list)] {
			if ta != nil && c.tallies.byKey[ta.key] != ta {
				t.Fatalf("%s holds a tally that is dropped", p.Pod.Name)
			}
		}
	}
	for label, list := range c.tallies.byLabel {
		for _, ta := range list {
			if c.tallies.byKey[ta.key] != ta {
				t.Fatalf("%q leads to a tally that is dropped", label)
			}
		}
	}
}

// TestForgetsTallies asks for more than are kept.
func TestForgetsTallies(t *testing.T) {
	c := NewCluster()
	for i := range maxTallies + 10 {
		c.Tally(false, NewTerm("host", []string{string(rune('a' + i))}, nil, labels.Everything()))
	}
	if n := len(c.tallies.byKey); n > maxTallies {
		t.Errorf("%d are kept", n)
	}
	p := c.NewPod(pod("a", nil))
	c.Place(p, "n")
	c.Displace(p)
}
