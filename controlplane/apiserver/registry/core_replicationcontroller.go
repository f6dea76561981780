package registry

import (
	"context"
	"strconv"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

var replicationControllers = &Kind[*corev1.ReplicationController]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ReplicationController"),
	Plural:           "replicationcontrollers",
	Metadata:         Named,
	NameRule:         nameIsLong,
	Short:            []string{"rc"},
	Categories:       []string{"all"},
	Prefix:           "controllers",
	Propagation:      metav1.DeletePropagationOrphan,

	Default: func(r *corev1.ReplicationController) {
		fillPtr(&r.Spec.Replicas, 1)
		if t := r.Spec.Template; t != nil {
			if t.Labels != nil && len(r.Spec.Selector) == 0 {
				r.Spec.Selector = t.Labels
			}
			if t.Labels != nil && len(r.Labels) == 0 {
				r.Labels = t.Labels
			}
			defaultTemplate(t)
		}
	},
	Prepare: spec(
		func(r *corev1.ReplicationController) { r.Status = corev1.ReplicationControllerStatus{} },
		func(r, old *corev1.ReplicationController) { r.Status = old.Status },
		func(r, old *corev1.ReplicationController) bool { return !same(r.Spec, old.Spec) }),
	Pods: func(o *corev1.ReplicationController) *corev1.PodSpec {
		if o.Spec.Template == nil {
			return &corev1.PodSpec{}
		}
		return &o.Spec.Template.Spec
	},
	Validate: validateReplicationController,
	Warn: func(_ context.Context, r, old *corev1.ReplicationController) (warnings []string) {
		if old == nil {
			warnings = warnPodName(r.Name)
		}
		if r.Spec.Template != nil && (old == nil || !same(r.Spec.Template, old.Spec.Template)) {
			warnings = append(warnings, warnTemplate(r.Spec.Template, specTemplate)...)
		}
		return warnings
	},
	Fields: func(r *corev1.ReplicationController) fields.Set {
		return fields.Set{"status.replicas": strconv.Itoa(int(r.Status.Replicas))}
	},
	Columns: append([]Column[*corev1.ReplicationController]{
		nameColumn[*corev1.ReplicationController](),
		column("Desired", "integer", corev1.ReplicationControllerSpec{}.SwaggerDoc()["replicas"], 0,
			func(r *corev1.ReplicationController) any { return int64(deref(r.Spec.Replicas, 0)) }),
		column("Current", "integer", corev1.ReplicationControllerStatus{}.SwaggerDoc()["replicas"], 0,
			func(r *corev1.ReplicationController) any { return int64(r.Status.Replicas) }),
		column("Ready", "integer", corev1.ReplicationControllerStatus{}.SwaggerDoc()["readyReplicas"], 0,
			func(r *corev1.ReplicationController) any { return int64(r.Status.ReadyReplicas) }),
		ageColumn[*corev1.ReplicationController](),
	}, append(templateColumns(func(r *corev1.ReplicationController) *corev1.PodSpec {
		if r.Spec.Template == nil {
			return nil
		}
		return &r.Spec.Template.Spec
	}), column("Selector", "string", corev1.ReplicationControllerSpec{}.SwaggerDoc()["selector"], 1,
		func(r *corev1.ReplicationController) any { return labels.FormatLabels(r.Spec.Selector) }))...),
	Sub: []Subresource[*corev1.ReplicationController]{
		scaleOf(&Scale[*corev1.ReplicationController]{
			Get: func(r *corev1.ReplicationController) *autoscalingv1.Scale {
				return scaleFrom(r.Spec.Replicas, r.Status.Replicas, &metav1.LabelSelector{MatchLabels: r.Spec.Selector})
			},
			Set: func(r *corev1.ReplicationController, n int32) { r.Spec.Replicas = &n },
		}),
		statusOf(func(r, old *corev1.ReplicationController) { r.Spec = old.Spec }, validateReplicationControllerStatus),
	},
}
