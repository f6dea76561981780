package registry

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var replicaSets = &Kind[*appsv1.ReplicaSet]{
	GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
	Plural:           "replicasets",
	Short:            []string{"rs"},
	Categories:       []string{"all"},

	Default: func(r *appsv1.ReplicaSet) {
		fillPtr(&r.Spec.Replicas, 1)
		defaultTemplate(&r.Spec.Template)
	},
	Prepare: spec(
		func(r *appsv1.ReplicaSet) { r.Status = appsv1.ReplicaSetStatus{} },
		func(r, old *appsv1.ReplicaSet) { r.Status = old.Status },
		func(r, old *appsv1.ReplicaSet) bool { return !same(r.Spec, old.Spec) }),
	Pods:     func(o *appsv1.ReplicaSet) *corev1.PodSpec { return &o.Spec.Template.Spec },
	Validate: validateReplicaSet,
	Warn: func(_ context.Context, r, old *appsv1.ReplicaSet) []string {
		if old != nil {
			if same(r.Spec.Template, old.Spec.Template) {
				return nil
			}
			return warnTemplate(&r.Spec.Template, specTemplate)
		}
		return append(warnPodName(r.Name), warnTemplate(&r.Spec.Template, specTemplate)...)
	},
	Columns: append([]Column[*appsv1.ReplicaSet]{
		nameColumn[*appsv1.ReplicaSet](),
		column("Desired", "integer", appsv1.ReplicaSetSpec{}.SwaggerDoc()["replicas"], 0,
			func(r *appsv1.ReplicaSet) any { return int64(deref(r.Spec.Replicas, 0)) }),
		column("Current", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["replicas"], 0,
			func(r *appsv1.ReplicaSet) any { return int64(r.Status.Replicas) }),
		column("Ready", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["readyReplicas"], 0,
			func(r *appsv1.ReplicaSet) any { return int64(r.Status.ReadyReplicas) }),
		ageColumn[*appsv1.ReplicaSet](),
	}, append(templateColumns(func(r *appsv1.ReplicaSet) *corev1.PodSpec { return &r.Spec.Template.Spec }),
		column("Selector", "string", appsv1.ReplicaSetSpec{}.SwaggerDoc()["selector"], 1,
			func(r *appsv1.ReplicaSet) any { return metav1.FormatLabelSelector(r.Spec.Selector) }))...),
	Sub: []Subresource[*appsv1.ReplicaSet]{
		scaleOf(&Scale[*appsv1.ReplicaSet]{
			Get: func(r *appsv1.ReplicaSet) *autoscalingv1.Scale {
				return scaleFrom(r.Spec.Replicas, r.Status.Replicas, r.Spec.Selector)
			},
			Set: func(r *appsv1.ReplicaSet, n int32) { r.Spec.Replicas = &n },
		}),
		statusOf(func(r, old *appsv1.ReplicaSet) { r.Spec = old.Spec }, validateReplicaSetStatus),
	},
}
