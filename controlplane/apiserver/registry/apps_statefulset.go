package registry

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var statefulSets = &Kind[*appsv1.StatefulSet]{
	GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("StatefulSet"),
	Plural:           "statefulsets",
	Short:            []string{"sts"},
	Categories:       []string{"all"},
	NameRule:         NameIsDNSLabel,

	Default: defaultStatefulSet,
	Prepare: func(ctx context.Context, s, old *appsv1.StatefulSet) {
		if u := s.Spec.UpdateStrategy.RollingUpdate; u != nil && (old == nil ||
			old.Spec.UpdateStrategy.RollingUpdate == nil || old.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable == nil) {
			u.MaxUnavailable = nil // off by default upstream
		}
		prepareStatefulSet(ctx, s, old)
	},
	Decoded:  nameClaimTemplates,
	Pods:     func(o *appsv1.StatefulSet) *corev1.PodSpec { return &o.Spec.Template.Spec },
	Validate: validateStatefulSet,
	Warn: func(_ context.Context, s, old *appsv1.StatefulSet) (warnings []string) {
		if old == nil || !same(s.Spec.Template, old.Spec.Template) {
			warnings = warnTemplate(&s.Spec.Template, specTemplate)
		}
		if deref(s.Spec.RevisionHistoryLimit, 0) < 0 {
			warnings = append(warnings, "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
		}
		return warnings
	},
	Columns: append([]Column[*appsv1.StatefulSet]{
		nameColumn[*appsv1.StatefulSet](),
		column("Ready", "string", "Number of the pod with ready state", 0, func(s *appsv1.StatefulSet) any {
			return fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, deref(s.Spec.Replicas, 0))
		}),
		ageColumn[*appsv1.StatefulSet](),
	}, templateColumns(func(s *appsv1.StatefulSet) *corev1.PodSpec { return &s.Spec.Template.Spec })...),
	Sub: []Subresource[*appsv1.StatefulSet]{
		scaleOf(&Scale[*appsv1.StatefulSet]{
			Get: func(s *appsv1.StatefulSet) *autoscalingv1.Scale {
				return scaleFrom(s.Spec.Replicas, s.Status.Replicas, s.Spec.Selector)
			},
			Set: func(s *appsv1.StatefulSet, n int32) { s.Spec.Replicas = &n },
		}),
		statusOf(func(s, old *appsv1.StatefulSet) { s.Spec = old.Spec }, validateStatefulSetStatus),
	},
}

var prepareStatefulSet = spec(
	func(s *appsv1.StatefulSet) { s.Status = appsv1.StatefulSetStatus{} },
	func(s, old *appsv1.StatefulSet) { s.Status = old.Status },
	func(s, old *appsv1.StatefulSet) bool { return !same(s.Spec, old.Spec) })

func defaultStatefulSet(s *appsv1.StatefulSet) {
	fill(&s.Spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	u := &s.Spec.UpdateStrategy
	if u.Type == "" {
		u.Type = appsv1.RollingUpdateStatefulSetStrategyType
		if u.RollingUpdate == nil {
			u.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{}
		}
	}
	if u.Type == appsv1.RollingUpdateStatefulSetStrategyType && u.RollingUpdate != nil {
		fillPtr(&u.RollingUpdate.Partition, 0)
	}
	if s.Spec.PersistentVolumeClaimRetentionPolicy == nil {
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{}
	}
	fill(&s.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	fill(&s.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	fillPtr(&s.Spec.Replicas, 1)
	fillPtr(&s.Spec.RevisionHistoryLimit, 10)
	defaultTemplate(&s.Spec.Template)
	for i := range s.Spec.VolumeClaimTemplates {
		c := &s.Spec.VolumeClaimTemplates[i]
		defaultClaim(c)
	}
	nameClaimTemplates(s)
}

// nameClaimTemplates sets the kind of the templates, which upstream's conversion does with
// whatever it reads: protobuf messages do not have it.
func nameClaimTemplates(s *appsv1.StatefulSet) {
	for i := range s.Spec.VolumeClaimTemplates {
		s.Spec.VolumeClaimTemplates[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}
	}
}
