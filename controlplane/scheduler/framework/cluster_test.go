package framework

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
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
