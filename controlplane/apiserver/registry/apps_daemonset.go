package registry

import (
	"context"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var daemonSets = &Kind[*appsv1.DaemonSet]{
	GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("DaemonSet"),
	Plural:           "daemonsets",
	Short:            []string{"ds"},
	Categories:       []string{"all"},

	Default: func(d *appsv1.DaemonSet) {
		u := &d.Spec.UpdateStrategy
		fill(&u.Type, appsv1.RollingUpdateDaemonSetStrategyType)
		if u.Type == appsv1.RollingUpdateDaemonSetStrategyType {
			if u.RollingUpdate == nil {
				u.RollingUpdate = &appsv1.RollingUpdateDaemonSet{}
			}
			fillPtr(&u.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
			fillPtr(&u.RollingUpdate.MaxSurge, intstr.FromInt32(0))
		}
		fillPtr(&d.Spec.RevisionHistoryLimit, 10)
		defaultTemplate(&d.Spec.Template)
		if d.Annotations[appsv1.DeprecatedTemplateGeneration] == "" {
			annotateTemplateGeneration(d, 0)
		}
	},
	Prepare: func(ctx context.Context, d, old *appsv1.DaemonSet) {
		prepareDaemonSet(ctx, d, old)
		setTemplateGeneration(d, old)
	},
	Pods:     func(o *appsv1.DaemonSet) *corev1.PodSpec { return &o.Spec.Template.Spec },
	Validate: validateDaemonSet,
	Warn: func(_ context.Context, d, old *appsv1.DaemonSet) []string {
		if old != nil && same(d.Spec.Template, old.Spec.Template) {
			return nil
		}
		return warnTemplate(&d.Spec.Template, specTemplate)
	},
	Columns: append([]Column[*appsv1.DaemonSet]{
		nameColumn[*appsv1.DaemonSet](),
		daemonColumn("Desired", "desiredNumberScheduled", func(s *appsv1.DaemonSetStatus) int32 { return s.DesiredNumberScheduled }),
		daemonColumn("Current", "currentNumberScheduled", func(s *appsv1.DaemonSetStatus) int32 { return s.CurrentNumberScheduled }),
		daemonColumn("Ready", "numberReady", func(s *appsv1.DaemonSetStatus) int32 { return s.NumberReady }),
		daemonColumn("Up-to-date", "updatedNumberScheduled", func(s *appsv1.DaemonSetStatus) int32 { return s.UpdatedNumberScheduled }),
		daemonColumn("Available", "numberAvailable", func(s *appsv1.DaemonSetStatus) int32 { return s.NumberAvailable }),
		column("Node Selector", "string", corev1.PodSpec{}.SwaggerDoc()["nodeSelector"], 0,
			func(d *appsv1.DaemonSet) any { return labels.FormatLabels(d.Spec.Template.Spec.NodeSelector) }),
		ageColumn[*appsv1.DaemonSet](),
	}, append(templateColumns(func(d *appsv1.DaemonSet) *corev1.PodSpec { return &d.Spec.Template.Spec }),
		column("Selector", "string", appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"], 1,
			func(d *appsv1.DaemonSet) any { return metav1.FormatLabelSelector(d.Spec.Selector) }))...),
	Sub: []Subresource[*appsv1.DaemonSet]{
		statusOf(func(d, old *appsv1.DaemonSet) {
			d.Spec = old.Spec
			annotateTemplateGeneration(d, templateGeneration(old))
		}, validateDaemonSetStatus),
	},
}

var prepareDaemonSet = spec(
	func(d *appsv1.DaemonSet) { d.Status = appsv1.DaemonSetStatus{} },
	func(d, old *appsv1.DaemonSet) { d.Status = old.Status },
	func(d, old *appsv1.DaemonSet) bool { return !same(d.Spec, old.Spec) })

// setTemplateGeneration counts changes of the template in the annotation that
// once was a field.
func setTemplateGeneration(d, old *appsv1.DaemonSet) {
	n := templateGeneration(d)
	if old != nil {
		n = templateGeneration(old)
		if !same(d.Spec.Template, old.Spec.Template) {
			n++
		}
	} else {
		n = max(n, 1)
	}
	annotateTemplateGeneration(d, n)
}

func annotateTemplateGeneration(d *appsv1.DaemonSet, n int64) {
	if d.Annotations == nil {
		d.Annotations = map[string]string{}
	}
	d.Annotations[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(n, 10)
}

func templateGeneration(d *appsv1.DaemonSet) int64 {
	n, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func daemonColumn(name, doc string, count func(*appsv1.DaemonSetStatus) int32) Column[*appsv1.DaemonSet] {
	return column(name, "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()[doc], 0,
		func(d *appsv1.DaemonSet) any { return int64(count(&d.Status)) })
}
