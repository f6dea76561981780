package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"knarr/internal/run"
)

// A PodControl creates, patches and deletes pods, and records it in events.
type PodControl struct {
	Client coreclient.PodsGetter
	Events record.EventRecorder
}

// FromTemplate is the pod that owner's template describes.
func FromTemplate(t *corev1.PodTemplateSpec, owner metav1.Object, ref *metav1.OwnerReference) *corev1.Pod {
	prefix := owner.GetName() + "-"
	if len(apivalidation.NameIsDNSSubdomain(prefix, true)) > 0 {
		prefix = owner.GetName()
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		GenerateName: prefix, Namespace: owner.GetNamespace(),
		Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations), Finalizers: slices.Clone(t.Finalizers),
	}, Spec: *t.Spec.DeepCopy()}
	if ref != nil {
		p.OwnerReferences = []metav1.OwnerReference{*ref}
	}
	return p
}

// Create stores the pod.
func (c PodControl) Create(ctx context.Context, pod *corev1.Pod, owner runtime.Object) (*corev1.Pod, error) {
	if len(pod.Labels) == 0 {
		return nil, errors.New("unable to create pods, no labels")
	}
	made, err := c.Client.Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			c.Events.Eventf(owner, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return nil, err
	}
	c.Events.Eventf(owner, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	return made, nil
}

// Delete removes the pod. That it was gone already is an error of NotFound.
func (c PodControl) Delete(ctx context.Context, pod *corev1.Pod, owner runtime.Object) error {
	err := c.Client.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		c.Events.Eventf(owner, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return fmt.Errorf("unable to delete pods: %w", err)
	}
	c.Events.Eventf(owner, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
	return nil
}

// Patch changes a pod.
func (c PodControl) Patch(ctx context.Context, pod *corev1.Pod, kind types.PatchType, patch []byte) (*corev1.Pod, error) {
	return c.Client.Pods(pod.Namespace).Patch(ctx, pod.Name, kind, patch, metav1.PatchOptions{})
}

// InFlight is the largest number of requests one batch has under way.
const InFlight = 500

// SlowStart calls do for 0 to n-1, first once, then in batches that double as
// long as all succeed: a quota that refuses every pod is asked once, not n
// times. It returns how many succeeded and the first failure.
func SlowStart(n int, do func(i int) error) (done int, err error) {
	for start, size := 0, 1; start < n; size = min(2*size, InFlight) {
		size = min(size, n-start)
		ok, err := Parallel(size, func(i int) error { return do(start + i) })
		done += ok
		if err != nil {
			return done, err
		}
		start += size
	}
	return done, nil
}

// Parallel calls do for 0 to n-1, up to InFlight at once. It returns how many
// succeeded and the first failure.
func Parallel(n int, do func(i int) error) (done int, err error) {
	for _, e := range run.Each("pods", InFlight, n, do) {
		switch {
		case e == nil:
			done++
		case err == nil:
			err = e
		}
	}
	return done, err
}
