package registry

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// scaleOf is the scale subresource.
func scaleOf[T Object](s *Scale[T]) Subresource[T] {
	return Subresource[T]{
		Name:  "scale",
		Kind:  autoscalingv1.SchemeGroupVersion.WithKind("Scale"),
		Verbs: partVerbs,
		Scale: s,
	}
}

// scaleFrom is the Scale of a workload that selects pods by a label selector.
func scaleFrom(want *int32, have int32, selector *metav1.LabelSelector) *autoscalingv1.Scale {
	s := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: deref(want, 0)}}
	s.Status.Replicas = have
	if sel, err := metav1.LabelSelectorAsSelector(selector); err == nil {
		s.Status.Selector = sel.String()
	}
	return s
}
