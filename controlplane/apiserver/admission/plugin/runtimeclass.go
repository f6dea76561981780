package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

// runtimeClass gives a new pod what its runtime class says of overhead and
// scheduling, and refuses a class that does not exist.
type runtimeClass struct{ cache *watchcache.Cache }

func (*runtimeClass) Name() string { return "RuntimeClass" }

// of is the pod that is created and its class, nil if it names none.
func (r *runtimeClass) of(ctx context.Context, a *admission.Attributes) (*corev1.Pod, *nodev1.RuntimeClass, error) {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !is(a, "pods", "") || a.Operation != admission.Create {
		return nil, nil, nil
	}
	if pod.Spec.RuntimeClassName == nil {
		return pod, nil, nil
	}
	name := *pod.Spec.RuntimeClassName
	class, err := lookup[*nodev1.RuntimeClass](ctx, r.cache, nodev1.SchemeGroupVersion.WithResource("runtimeclasses"), name, name)
	if apierrors.IsNotFound(err) {
		err = forbidden(a, fmt.Errorf("pod rejected: RuntimeClass %q not found", name))
	}
	return pod, class, err
}

var errOverhead = errors.New("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")

func (r *runtimeClass) Admit(ctx context.Context, a *admission.Attributes) error {
	pod, class, err := r.of(ctx, a)
	if err != nil || class == nil {
		return err
	}
	if o := class.Overhead; o != nil {
		if len(pod.Spec.Overhead) > 0 && !apiequality.Semantic.DeepEqual(o.PodFixed, pod.Spec.Overhead) {
			return forbidden(a, errOverhead)
		}
		pod.Spec.Overhead = o.PodFixed.DeepCopy()
	}
	if s := class.Scheduling; s != nil {
		for key, want := range s.NodeSelector {
			if have, ok := pod.Spec.NodeSelector[key]; ok && have != want {
				return forbidden(a, fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, want, key, have))
			}
			if pod.Spec.NodeSelector == nil {
				pod.Spec.NodeSelector = map[string]string{}
			}
			pod.Spec.NodeSelector[key] = want
		}
		pod.Spec.Tolerations = mergeTolerations(pod.Spec.Tolerations, s.Tolerations)
	}
	return nil
}

func (r *runtimeClass) Validate(ctx context.Context, a *admission.Attributes) error {
	pod, class, err := r.of(ctx, a)
	switch {
	case err != nil || pod == nil:
		return err
	case class != nil && class.Overhead != nil:
		if !apiequality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return forbidden(a, errOverhead)
		}
	case pod.Spec.Overhead != nil:
		return forbidden(a, errors.New("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"))
	}
	return nil
}

// mergeTolerations keeps of both lists what no other toleration covers, and of
// equal ones the first.
func mergeTolerations(first, second []corev1.Toleration) (merged []corev1.Toleration) {
	all := slices.Concat(first, second)
	for i, t := range all {
		if !slices.ContainsFunc(merged, func(m corev1.Toleration) bool { return covers(m, t) }) &&
			!slices.ContainsFunc(all[i+1:], func(later corev1.Toleration) bool {
				return covers(later, t) && !apiequality.Semantic.DeepEqual(later, t)
			}) {
			merged = append(merged, t)
		}
	}
	return merged
}

// covers says that a tolerates all that b does.
func covers(a, b corev1.Toleration) bool {
	switch {
	case apiequality.Semantic.DeepEqual(a, b):
		return true
	case a.Key != b.Key && (a.Key != "" || a.Operator != corev1.TolerationOpExists),
		a.Effect != b.Effect && a.Effect != "":
		return false
	case a.Effect == corev1.TaintEffectNoExecute && a.TolerationSeconds != nil &&
		(b.TolerationSeconds == nil || *b.TolerationSeconds > *a.TolerationSeconds):
		return false
	case a.Operator == corev1.TolerationOpExists:
		return true
	}
	return (a.Operator == corev1.TolerationOpEqual || a.Operator == "") && b.Operator == corev1.TolerationOpEqual && a.Value == b.Value
}
