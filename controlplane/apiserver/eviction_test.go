package apiserver_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestEviction(t *testing.T) {
	w := newWorld(t)
	pods, budgets := w.admin.CoreV1().Pods("default"), w.admin.PolicyV1().PodDisruptionBudgets("default")
	pod := func(name string, phase corev1.PodPhase, ready corev1.ConditionStatus) {
		t.Helper()
		p := w.pod(name, "", func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": "a"}
			p.Finalizers = []string{"example.com/stay"}
		})
		p.Status.Phase = phase
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		_, err := pods.UpdateStatus(w.ctx, p, metav1.UpdateOptions{})
		w.must(err)
	}
	evict := func(name string, version *string) error {
		e := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if version != nil {
			e.DeleteOptions = &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: version}}
		}
		// The client would wait and try again.
		return w.admin.PolicyV1().RESTClient().Post().AbsPath("/api/v1").Namespace("default").Resource("pods").Name(name).SubResource("eviction").
			Body(e).MaxRetries(0).Do(w.ctx).Error()
	}
	budget := func(name string, status policyv1.PodDisruptionBudgetStatus) {
		t.Helper()
		b, err := budgets.Get(w.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			b, err = budgets.Create(w.ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}}}, metav1.CreateOptions{})
		}
		w.must(err)
		b.Status = status
		_, err = budgets.UpdateStatus(w.ctx, b, metav1.UpdateOptions{})
		w.must(err)
	}
	no := func(err error, cause string, after int) {
		t.Helper()
		refused(t, err, "Cannot evict pod as it would violate the pod's disruption budget.")
		s, ok := err.(*apierrors.StatusError)
		if !ok || s.ErrStatus.Code != 429 || len(s.ErrStatus.Details.Causes) != 1 || s.ErrStatus.Details.Causes[0].Message != cause || int(s.ErrStatus.Details.RetryAfterSeconds) != after {
			t.Errorf("%+v, want %s", err, cause)
		}
	}

	for _, name := range []string{"a", "b", "c"} {
		pod(name, corev1.PodRunning, corev1.ConditionTrue)
	}
	pod("sick", corev1.PodRunning, corev1.ConditionFalse)
	pod("pending", corev1.PodPending, corev1.ConditionFalse)
	budget("one", policyv1.PodDisruptionBudgetStatus{})
	no(evict("a", nil), "The disruption budget one is still being processed by the server.", 10)
	budget("one", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, CurrentHealthy: 1, DesiredHealthy: 1})
	no(evict("a", nil), "The disruption budget one needs 1 healthy pods and has 1 currently", 0)
	budget("one", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, CurrentHealthy: 3, DesiredHealthy: 1})
	no(evict("a", nil), "The disruption budget one does not allow evicting pods currently", 0)
	budget("one", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, Conditions: []metav1.Condition{{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason, Message: "why", LastTransitionTime: metav1.Now()}}})
	no(evict("a", nil), "The disruption budget one does not allow evicting pods currently because it failed sync: why", 0)
	no(evict("sick", nil), "The disruption budget one does not allow evicting pods currently because it failed sync: why", 0)
	w.must(evict("pending", nil)) // no loss

	budget("one", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, CurrentHealthy: 3, DesiredHealthy: 2, DisruptionsAllowed: 1})
	w.must(evict("sick", nil)) // it does not count
	refused(t, evict("a", new("1")), "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record")
	budget("one", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, CurrentHealthy: 3, DesiredHealthy: 2, DisruptionsAllowed: 1})
	w.must(evict("a", nil))
	b, err := budgets.Get(w.ctx, "one", metav1.GetOptions{})
	w.must(err)
	if _, ok := b.Status.DisruptedPods["a"]; !ok || b.Status.DisruptionsAllowed != 0 || len(b.Status.DisruptedPods) != 1 {
		t.Errorf("%+v", b.Status)
	}
	p, err := pods.Get(w.ctx, "a", metav1.GetOptions{})
	w.must(err)
	if c := p.Status.Conditions[len(p.Status.Conditions)-1]; p.DeletionTimestamp == nil || c.Type != corev1.DisruptionTarget || c.Reason != "EvictionByEvictionAPI" || c.Message != "Eviction API: evicting" {
		t.Errorf("%v %+v", p.DeletionTimestamp, p.Status.Conditions)
	}
	w.must(evict("a", nil)) // it goes already

	budget("two", policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1})
	refused(t, evict("b", nil), "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
}
