package disruption

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// TestManyBudgets: a change of a pod that thousands of budgets select has a few counted
// again, tells of it once, and goes by what their selectors are now.
func TestManyBudgets(t *testing.T) {
	budgets := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for i := range 4000 {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprintf("b%04d", i)}}
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
		if err := budgets.Add(b); err != nil {
			t.Fatal(err)
		}
	}
	events := record.NewFakeRecorder(10)
	r := &reconciler{budgets: budgets, events: events}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", Labels: map[string]string{"app": "a"}}}
	for range 2 {
		keys := r.ofPod(p)
		if len(keys) != budgetsOfPod || keys[0].Name != "b0000" || keys[0].pod {
			t.Fatalf("%d budgets are counted again, %v first", len(keys), keys[0])
		}
		if got, want := <-events.Events, `Warning MultiplePodDisruptionBudgets Pod "n"/"p" matches multiple PodDisruptionBudgets.  Chose "b0000" arbitrarily.`; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if len(events.Events) != 0 {
		t.Error("more is told:", <-events.Events)
	}
	read := 0
	r.selectors.Range(func(any, any) bool { read++; return true })
	if read != 4000 {
		t.Errorf("%d selectors are remembered", read)
	}
	obj, _, _ := budgets.GetByKey("n/b0000")
	b := obj.(*policyv1.PodDisruptionBudget).DeepCopy()
	b.Spec.Selector.MatchLabels["app"] = "other"
	if err := budgets.Update(b); err != nil {
		t.Fatal(err)
	}
	if keys := r.ofPod(p); len(keys) != budgetsOfPod || keys[0].Name != "b0001" {
		t.Errorf("with another selector: %v", keys)
	}
}
