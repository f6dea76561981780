// Package validatingadmissionpolicystatus is the
// validatingadmissionpolicy-status-controller. It reads
// ValidatingAdmissionPolicies and the API's schemas, and writes into the
// policies' status which of their expressions do not fit what they apply to.
package validatingadmissionpolicystatus

import (
	"context"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	admissionapply "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
)

// Name is the controller's.
const Name = "validatingadmissionpolicy-status-controller"

type reconciler struct {
	policies cache.Indexer
	client   kubernetes.Interface
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface) *controller.Controller[string] {
	policies := f.Admissionregistration().V1().ValidatingAdmissionPolicies().Informer()
	r := &reconciler{policies.GetIndexer(), client}
	return &controller.Controller[string]{
		Name:      Name,
		Sources:   []controller.Source[string]{{Informer: policies, Keys: func(o metav1.Object) []string { return []string{o.GetName()} }}},
		Reconcile: r.reconcile,
	}
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	obj, ok, err := r.policies.GetByKey(name)
	if err != nil || !ok {
		return 0, err
	}
	policy := obj.(*admissionv1.ValidatingAdmissionPolicy)
	if policy.Generation <= policy.Status.ObservedGeneration {
		return 0, nil
	}
	warnings, err := check(schemas{r.client.Discovery()}, policy)
	if err != nil {
		return 0, err
	}
	checked := admissionapply.TypeChecking()
	for _, w := range warnings {
		checked.WithExpressionWarnings(admissionapply.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	_, err = r.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().ApplyStatus(ctx,
		admissionapply.ValidatingAdmissionPolicy(name).WithUID(policy.UID).WithStatus(admissionapply.ValidatingAdmissionPolicyStatus().
			WithObservedGeneration(policy.Generation).WithTypeChecking(checked)),
		metav1.ApplyOptions{FieldManager: Name, Force: true})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	return 0, err
}
