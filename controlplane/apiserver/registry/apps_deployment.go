package registry

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

var deployments = &Kind[*appsv1.Deployment]{
	GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("Deployment"),
	Plural:           "deployments",
	Short:            []string{"deploy"},
	Categories:       []string{"all"},

	Default: func(d *appsv1.Deployment) {
		s := &d.Spec
		fillPtr(&s.Replicas, 1)
		fill(&s.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
		if s.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
			if s.Strategy.RollingUpdate == nil {
				s.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{}
			}
			fillPtr(&s.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
			fillPtr(&s.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
		}
		fillPtr(&s.RevisionHistoryLimit, 10)
		fillPtr(&s.ProgressDeadlineSeconds, 600)
		defaultTemplate(&s.Template)
	},
	Prepare: spec(
		func(d *appsv1.Deployment) { d.Status = appsv1.DeploymentStatus{} },
		func(d, old *appsv1.Deployment) { d.Status = old.Status },
		func(d, old *appsv1.Deployment) bool { // annotations reach the ReplicaSets
			return !same(d.Spec, old.Spec) || !same(d.Annotations, old.Annotations)
		}),
	Pods:     func(o *appsv1.Deployment) *corev1.PodSpec { return &o.Spec.Template.Spec },
	Validate: validateDeployment,
	Warn: func(_ context.Context, d, old *appsv1.Deployment) []string {
		if old != nil {
			if same(d.Spec.Template, old.Spec.Template) {
				return nil
			}
			return warnTemplate(&d.Spec.Template, specTemplate)
		}
		return append(warnPodName(d.Name), warnTemplate(&d.Spec.Template, specTemplate)...)
	},
	Columns: append([]Column[*appsv1.Deployment]{
		nameColumn[*appsv1.Deployment](),
		column("Ready", "string", "Number of the pod with ready state", 0, func(d *appsv1.Deployment) any {
			return fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, deref(d.Spec.Replicas, 0))
		}),
		column("Up-to-date", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"], 0,
			func(d *appsv1.Deployment) any { return int64(d.Status.UpdatedReplicas) }),
		column("Available", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"], 0,
			func(d *appsv1.Deployment) any { return int64(d.Status.AvailableReplicas) }),
		ageColumn[*appsv1.Deployment](),
	}, append(templateColumns(func(d *appsv1.Deployment) *corev1.PodSpec { return &d.Spec.Template.Spec }),
		column("Selector", "string", appsv1.DeploymentSpec{}.SwaggerDoc()["selector"], 1,
			func(d *appsv1.Deployment) any { return selectorString(d.Spec.Selector) }))...),
	Sub: []Subresource[*appsv1.Deployment]{
		scaleOf(&Scale[*appsv1.Deployment]{
			Get: func(d *appsv1.Deployment) *autoscalingv1.Scale {
				return scaleFrom(d.Spec.Replicas, d.Status.Replicas, d.Spec.Selector)
			},
			Set: func(d *appsv1.Deployment, n int32) { d.Spec.Replicas = &n },
		}),
		statusOf(func(d, old *appsv1.Deployment) { d.Spec, d.Labels = old.Spec, old.Labels }, validateDeploymentStatus),
	},
}

// warnPodName warns of a name that makes bad pod names.
func warnPodName(name string) []string {
	if msgs := utilvalidation.IsDNS1123Label(name); len(msgs) != 0 {
		return []string{fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs)}
	}
	return nil
}

func selectorString(s *metav1.LabelSelector) string {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "<invalid>"
	}
	return selector.String()
}

// fillPtr sets a pointer that is nil.
func fillPtr[V any](p **V, value V) {
	if *p == nil {
		*p = &value
	}
}
