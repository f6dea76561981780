package statefulset

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// retention is when claims are deleted with the set, and with a pod that is
// scaled away. The default of both is never.
func (v *view) retention() (deleted, scaled bool) {
	p := v.set.Spec.PersistentVolumeClaimRetentionPolicy
	if p == nil {
		return false, false
	}
	const remove = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	return p.WhenDeleted == remove, p.WhenScaled == remove
}

// condemnedPod says that the pod's ordinal is out of the set's range.
func (v *view) condemnedPod(p *corev1.Pod) bool {
	n := ordinal(v.set, p)
	return n < v.start() || n >= v.start()+v.wanted
}

// claimOwners are the owner references that the retention policy wants a pod's
// claim to have. Those of others stay; a claim that another controller manages
// gets none of ours (conflict), and one with a reference to a former set or pod
// of the name is left to the garbage collector.
func (v *view) claimOwners(have []metav1.OwnerReference, p *corev1.Pod) (want []metav1.OwnerReference, conflict bool) {
	if stale(have, v.set, kind) || stale(have, p, podKind) {
		return have, false
	}
	deleted, scaled := v.retention()
	for _, ref := range have {
		if names(ref, v.set, kind) || names(ref, p, podKind) {
			continue
		}
		if ref.Controller != nil && *ref.Controller && (deleted || scaled) {
			conflict = true
		}
		want = append(want, ref)
	}
	switch {
	case conflict:
	case scaled && v.condemnedPod(p):
		want = append(want, *metav1.NewControllerRef(p, podKind))
	case deleted:
		want = append(want, *metav1.NewControllerRef(v.set, kind))
	}
	return want, conflict
}

// names says that ref is to an object of obj's kind and name, whatever its UID.
func names(ref metav1.OwnerReference, obj metav1.Object, gvk schema.GroupVersionKind) bool {
	return ref.APIVersion == gvk.GroupVersion().String() && ref.Kind == gvk.Kind && ref.Name == obj.GetName()
}

// stale says that refs name a former object of obj's kind and name.
func stale(refs []metav1.OwnerReference, obj metav1.Object, gvk schema.GroupVersionKind) bool {
	i := slices.IndexFunc(refs, func(ref metav1.OwnerReference) bool { return names(ref, obj, gvk) })
	return i >= 0 && refs[i].UID != obj.GetUID()
}

// retainClaims makes the owners of a pod's claims as the retention policy wants
// them, now that the pod is in the set's range, or out of it.
func (r *reconciler) retainClaims(ctx context.Context, v *view, p *corev1.Pod) error {
	for _, claim := range v.claims(ordinal(v.set, p)) {
		obj, ok, err := r.claims.GetByKey(claim.Namespace + "/" + claim.Name)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		have := obj.(*corev1.PersistentVolumeClaim)
		want, conflict := v.claimOwners(have.OwnerReferences, p)
		if len(want) == len(have.OwnerReferences) && apiequality.Semantic.DeepEqual(want, have.OwnerReferences) {
			continue
		}
		if conflict {
			r.events.Eventf(v.set, corev1.EventTypeWarning, "ConflictingController",
				"PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim", have.Name)
		}
		next := have.DeepCopy()
		next.OwnerReferences = want
		if _, err := r.client.CoreV1().PersistentVolumeClaims(next.Namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("could not update claim %s for delete policy ownerRefs: %w", next.Name, err)
		}
	}
	return nil
}

// claimsEnd says that claims of a pod yet to be made still belong to its
// predecessor, with which they go: the pod waits for new ones.
func (r *reconciler) claimsEnd(v *view, p *corev1.Pod) (bool, error) {
	if _, scaled := v.retention(); !scaled {
		return false, nil
	}
	for _, claim := range v.claims(ordinal(v.set, p)) {
		obj, ok, err := r.claims.GetByKey(claim.Namespace + "/" + claim.Name)
		if err != nil {
			return false, err
		}
		if ok && stale(obj.(*corev1.PersistentVolumeClaim).OwnerReferences, p, podKind) {
			return true, nil
		}
	}
	return false, nil
}
