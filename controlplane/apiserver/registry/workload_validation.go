package registry

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateSelector checks a workload's selector, which must select something.
func validateSelector(s *metav1.LabelSelector, kind string, at *field.Path) field.ErrorList {
	if s == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	errs := metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, at)
	if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(at, s, "empty selector is invalid for "+kind))
	}
	return errs
}

// validateMatch: the selector selects the template's pods.
func validateMatch(s labels.Selector, template map[string]string, at *field.Path) field.ErrorList {
	if s.Empty() || s.Matches(labels.Set(template)) {
		return nil
	}
	return field.ErrorList{field.Invalid(at.Child("metadata", "labels"), template, "`selector` does not match template `labels`")}
}

// alwaysRestarts: pods that a controller keeps alive restart and have no end.
func alwaysRestarts(s *corev1.PodSpec, kind string, at *field.Path) field.ErrorList {
	var f faults
	if s.RestartPolicy != corev1.RestartPolicyAlways {
		f.list = append(f.list, field.NotSupported(at.Child("restartPolicy"), s.RestartPolicy, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if s.ActiveDeadlineSeconds != nil {
		f.forbidden(at.Child("activeDeadlineSeconds"), "activeDeadlineSeconds in "+kind+" is not Supported")
	}
	return f.list
}

// count is a number in a status.
type count struct {
	name  string
	value int64
}

func nonnegativeCounts(at *field.Path, counts ...count) field.ErrorList {
	var f faults
	for _, c := range counts {
		f.add(nonnegative(c.value, at.Child(c.name)))
	}
	return f.list
}

// notMore reports the counts that exceed a limit.
func notMore(limit int64, than string, at *field.Path, counts ...count) field.ErrorList {
	var f faults
	for _, c := range counts {
		if c.value > limit {
			f.invalid(at.Child(c.name), int32(c.value), "cannot be greater than "+than)
		}
	}
	return f.list
}

func notDecremented(now, was *int32, at *field.Path) field.ErrorList {
	if was == nil || (now != nil && *now >= *was) {
		return nil
	}
	return field.ErrorList{field.Invalid(at.Child("collisionCount"), deref(now, 0), "cannot be decremented")}
}

func validateDeployment(_ context.Context, d, old *appsv1.Deployment) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	s := &d.Spec
	f.add(nonnegativeOpt(s.Replicas, at.Child("replicas")))
	f.add(validateSelector(s.Selector, "deployment", at.Child("selector")))
	if selector, err := metav1.LabelSelectorAsSelector(s.Selector); err != nil {
		f.invalid(at.Child("selector"), s.Selector, "invalid label selector")
	} else {
		f.add(validateReplicatedTemplate(&s.Template, selector, "ReplicaSet", at.Child("template")))
	}
	f.add(validateDeploymentStrategy(&s.Strategy, at.Child("strategy")))
	f.add(nonnegative(s.MinReadySeconds, at.Child("minReadySeconds")))
	f.add(nonnegativeOpt(s.RevisionHistoryLimit, at.Child("revisionHistoryLimit")))
	if p := s.ProgressDeadlineSeconds; p != nil {
		f.add(nonnegative(*p, at.Child("progressDeadlineSeconds")))
		if *p <= s.MinReadySeconds {
			f.invalid(at.Child("progressDeadlineSeconds"), *p, "must be greater than minReadySeconds")
		}
	}
	if old != nil {
		f.add(unchanged(s.Selector, old.Spec.Selector, at.Child("selector")))
	}
	return f.list
}

func validateReplicatedTemplate(t *corev1.PodTemplateSpec, selector labels.Selector, kind string, at *field.Path) field.ErrorList {
	var f faults
	f.add(validateMatch(selector, t.Labels, at))
	f.add(validateTemplate(t, at))
	f.add(alwaysRestarts(&t.Spec, kind, at.Child("spec")))
	return f.list
}

// oddStrategy shows a strategy as upstream's messages do.
type oddStrategy struct {
	Type          string
	RollingUpdate *oddRolling
}

type oddRolling struct{ MaxUnavailable, MaxSurge intstr.IntOrString }

// odd is a rolling update of a deployment or a daemon set.
func odd(set bool, unavailable, surge func() *intstr.IntOrString) *oddRolling {
	if !set {
		return nil
	}
	return &oddRolling{deref(unavailable(), intstr.IntOrString{}), deref(surge(), intstr.IntOrString{})}
}

func validateDeploymentStrategy(s *appsv1.DeploymentStrategy, at *field.Path) field.ErrorList {
	var f faults
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			f.forbidden(at.Child("rollingUpdate"), "may not be specified when strategy `type` is 'Recreate'")
		}
	case appsv1.RollingUpdateDeploymentStrategyType:
		if s.RollingUpdate == nil {
			f.required(at.Child("rollingUpdate"), "this should be defaulted and never be nil")
			break
		}
		p := at.Child("rollingUpdate")
		unavailable, surge := s.RollingUpdate.MaxUnavailable, s.RollingUpdate.MaxSurge
		if unavailable != nil {
			f.add(intOrPercent(*unavailable, p.Child("maxUnavailable")))
		}
		if surge != nil {
			f.add(intOrPercent(*surge, p.Child("maxSurge")))
		}
		if countOf(unavailable) == 0 && countOf(surge) == 0 {
			f.invalid(p.Child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0")
		}
		if unavailable != nil {
			f.add(atMostHundredPercent(*unavailable, p.Child("maxUnavailable")))
		}
	default:
		f.list = append(f.list, field.NotSupported(at, oddStrategy{string(s.Type), odd(s.RollingUpdate != nil,
			func() *intstr.IntOrString { return s.RollingUpdate.MaxUnavailable }, func() *intstr.IntOrString { return s.RollingUpdate.MaxSurge })}, []string{
			string(appsv1.RecreateDeploymentStrategyType), string(appsv1.RollingUpdateDeploymentStrategyType)}))
	}
	return f.list
}

func validateDeploymentStatus(_ context.Context, d, old *appsv1.Deployment) field.ErrorList {
	var f faults
	at := field.NewPath("status")
	s := &d.Status
	replicas, updated := int64(s.Replicas), count{"updatedReplicas", int64(s.UpdatedReplicas)}
	ready, available := count{"readyReplicas", int64(s.ReadyReplicas)}, count{"availableReplicas", int64(s.AvailableReplicas)}
	f.add(nonnegativeCounts(at, count{"observedGeneration", s.ObservedGeneration}, count{"replicas", replicas}, updated, ready, available,
		count{"unavailableReplicas", int64(s.UnavailableReplicas)}, count{"terminatingReplicas", int64(deref(s.TerminatingReplicas, 0))},
		count{"collisionCount", int64(deref(s.CollisionCount, 0))}))
	f.add(notMore(replicas, "status.replicas", at, updated, ready, available))
	f.add(notMore(ready.value, "readyReplicas", at, available))
	f.add(notDecremented(s.CollisionCount, old.Status.CollisionCount, at))
	return f.list
}

func validateReplicaSet(_ context.Context, r, old *appsv1.ReplicaSet) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	f.add(nonnegativeOpt(r.Spec.Replicas, at.Child("replicas")))
	f.add(nonnegative(r.Spec.MinReadySeconds, at.Child("minReadySeconds")))
	f.add(validateSelector(r.Spec.Selector, "deployment" /* upstream's slip */, at.Child("selector")))
	if selector, err := metav1.LabelSelectorAsSelector(r.Spec.Selector); err != nil {
		f.invalid(at.Child("selector"), r.Spec.Selector, "invalid label selector")
	} else {
		f.add(validateReplicatedTemplate(&r.Spec.Template, selector, "ReplicaSet", at.Child("template")))
	}
	if old != nil {
		f.add(unchanged(r.Spec.Selector, old.Spec.Selector, at.Child("selector")))
	}
	return f.list
}

func validateReplicaSetStatus(_ context.Context, r, _ *appsv1.ReplicaSet) field.ErrorList {
	s := &r.Status
	return replicaCounts(s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas, s.ObservedGeneration, deref(s.TerminatingReplicas, 0))
}

func replicaCounts(replicas, labeled, ready, available int32, generation int64, terminating int32) field.ErrorList {
	var f faults
	at := field.NewPath("status")
	l, r, a := count{"fullyLabeledReplicas", int64(labeled)}, count{"readyReplicas", int64(ready)}, count{"availableReplicas", int64(available)}
	f.add(nonnegativeCounts(at, count{"replicas", int64(replicas)}, l, r, a,
		count{"observedGeneration", generation}, count{"terminatingReplicas", int64(terminating)}))
	f.add(notMore(int64(replicas), "status.replicas", at, l, r, a))
	f.add(notMore(int64(ready), "readyReplicas", at, a))
	return f.list
}

func validateReplicationController(_ context.Context, r, _ *corev1.ReplicationController) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	f.add(nonnegative(r.Spec.MinReadySeconds, at.Child("minReadySeconds")))
	if len(r.Spec.Selector) == 0 {
		f.required(at.Child("selector"), "")
	}
	f.add(nonnegativeOpt(r.Spec.Replicas, at.Child("replicas")))
	if r.Spec.Template == nil {
		f.required(at.Child("template"), "")
		return f.list
	}
	f.add(validateReplicatedTemplate(r.Spec.Template, labels.Set(r.Spec.Selector).AsSelectorPreValidated(),
		"ReplicationController", at.Child("template")))
	return f.list
}

func validateReplicationControllerStatus(_ context.Context, r, _ *corev1.ReplicationController) field.ErrorList {
	s := &r.Status
	return replicaCounts(s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas, s.ObservedGeneration, 0)
}

func validateDaemonSet(_ context.Context, d, old *appsv1.DaemonSet) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	if old != nil {
		f.add(unchanged(d.Spec.Selector, old.Spec.Selector, at.Child("selector")))
	}
	s := &d.Spec
	f.add(metavalidation.ValidateLabelSelector(s.Selector, metavalidation.LabelSelectorValidationOptions{}, at.Child("selector")))
	if selector, err := metav1.LabelSelectorAsSelector(s.Selector); err == nil && !selector.Matches(labels.Set(s.Template.Labels)) {
		f.invalid(at.Child("template", "metadata", "labels"), s.Template.Labels, "`selector` does not match template `labels`")
	}
	if s.Selector != nil && len(s.Selector.MatchLabels)+len(s.Selector.MatchExpressions) == 0 {
		f.invalid(at.Child("selector"), s.Selector, "empty selector is invalid for daemonset")
	}
	f.add(validateTemplate(&s.Template, at.Child("template")))
	f.add(alwaysRestarts(&s.Template.Spec, "DaemonSet", at.Child("template", "spec")))
	f.add(nonnegative(s.MinReadySeconds, at.Child("minReadySeconds")))
	f.add(nonnegative(templateGeneration(d), at.Child("templateGeneration")))
	f.add(validateDaemonStrategy(&s.UpdateStrategy, at.Child("updateStrategy")))
	f.add(nonnegativeOpt(s.RevisionHistoryLimit, at.Child("revisionHistoryLimit")))
	return f.list
}

func validateDaemonStrategy(s *appsv1.DaemonSetUpdateStrategy, at *field.Path) field.ErrorList {
	var f faults
	switch s.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		p := at.Child("rollingUpdate")
		if s.RollingUpdate == nil {
			f.required(p, "")
			break
		}
		unavailable, surge := s.RollingUpdate.MaxUnavailable, s.RollingUpdate.MaxSurge
		for _, v := range []struct {
			name string
			ok   bool
		}{{"maxUnavailable", unavailable != nil}, {"maxSurge", surge != nil}} {
			if v.ok {
				value := unavailable
				if v.name == "maxSurge" {
					value = surge
				}
				f.add(intOrPercent(*value, p.Child(v.name)))
				f.add(atMostHundredPercent(*value, p.Child(v.name)))
			}
		}
		switch u, s := countOf(unavailable), countOf(surge); {
		case u != 0 && s != 0:
			f.invalid(p.Child("maxSurge"), surge, "may not be set when maxUnavailable is non-zero")
		case u == 0 && s == 0:
			f.required(p.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0")
		}
	default:
		f.list = append(f.list, field.NotSupported(at, oddStrategy{string(s.Type), odd(s.RollingUpdate != nil,
			func() *intstr.IntOrString { return s.RollingUpdate.MaxUnavailable }, func() *intstr.IntOrString { return s.RollingUpdate.MaxSurge })}, []string{
			string(appsv1.RollingUpdateDaemonSetStrategyType), string(appsv1.OnDeleteDaemonSetStrategyType)}))
	}
	return f.list
}

func validateDaemonSetStatus(_ context.Context, d, old *appsv1.DaemonSet) field.ErrorList {
	var f faults
	at := field.NewPath("status")
	s := &d.Status
	f.add(nonnegativeCounts(at,
		count{"currentNumberScheduled", int64(s.CurrentNumberScheduled)}, count{"numberMisscheduled", int64(s.NumberMisscheduled)},
		count{"desiredNumberScheduled", int64(s.DesiredNumberScheduled)}, count{"numberReady", int64(s.NumberReady)},
		count{"observedGeneration", s.ObservedGeneration}, count{"updatedNumberScheduled", int64(s.UpdatedNumberScheduled)},
		count{"numberAvailable", int64(s.NumberAvailable)}, count{"numberUnavailable", int64(s.NumberUnavailable)},
		count{"collisionCount", int64(deref(s.CollisionCount, 0))}))
	f.add(notDecremented(s.CollisionCount, old.Status.CollisionCount, at))
	return f.list
}

const statefulSetUpdatable = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"

func validateStatefulSet(_ context.Context, s, old *appsv1.StatefulSet) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	f.add(validateStatefulSetSpec(&s.Spec, old == nil, at))
	if old == nil {
		return f.list
	}
	rest := s.Spec
	rest.Replicas, rest.Template = old.Spec.Replicas, old.Spec.Template
	rest.UpdateStrategy, rest.MinReadySeconds = old.Spec.UpdateStrategy, old.Spec.MinReadySeconds
	rest.Ordinals, rest.RevisionHistoryLimit = old.Spec.Ordinals, old.Spec.RevisionHistoryLimit
	rest.PersistentVolumeClaimRetentionPolicy = old.Spec.PersistentVolumeClaimRetentionPolicy
	if !same(rest, old.Spec) {
		f.forbidden(at, statefulSetUpdatable)
	}
	return f.list
}

func validateStatefulSetSpec(s *appsv1.StatefulSetSpec, isNew bool, at *field.Path) field.ErrorList {
	var f faults
	switch s.PodManagementPolicy {
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	case "":
		f.required(at.Child("podManagementPolicy"), "")
	default:
		f.invalid(at.Child("podManagementPolicy"), s.PodManagementPolicy,
			fmt.Sprintf("must be '%s' or '%s'", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement))
	}
	f.add(validateStatefulStrategy(&s.UpdateStrategy, at.Child("updateStrategy")))
	if p := s.PersistentVolumeClaimRetentionPolicy; p != nil {
		q := at.Child("persistentVolumeClaimRetentionPolicy")
		for _, v := range []struct {
			name string
			typ  appsv1.PersistentVolumeClaimRetentionPolicyType
		}{{"whenDeleted", p.WhenDeleted}, {"whenScaled", p.WhenScaled}} {
			among(&f, v.typ, q.Child(v.name), appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType)
		}
	}
	if isNew {
		for i := range s.VolumeClaimTemplates {
			f.add(validateClaimSpec(&s.VolumeClaimTemplates[i].Spec, at.Child("volumeClaimTemplates").Index(i).Child("spec")))
		}
		if s.ServiceName != "" {
			f.add(dnsLabel(s.ServiceName, at.Child("serviceName")))
		}
	}
	f.add(nonnegativeOpt(s.Replicas, at.Child("replicas")))
	f.add(nonnegative(s.MinReadySeconds, at.Child("minReadySeconds")))
	if s.Ordinals != nil {
		f.add(nonnegative(s.Ordinals.Start, at.Child("ordinals.start")))
	}
	f.add(validateSelector(s.Selector, "statefulset", at.Child("selector")))
	if selector, err := metav1.LabelSelectorAsSelector(s.Selector); err != nil {
		f.invalid(at.Child("selector"), s.Selector, "")
	} else {
		p := at.Child("template")
		f.add(validateMatch(selector, s.Template.Labels, p))
		f.add(validateTemplate(statefulTemplate(s), p))
		// upstream checks these twice
		f.add(metavalidation.ValidateLabels(s.Template.Labels, p.Child("labels")))
		f.add(validatePodAnnotations(s.Template.Annotations, &s.Template.Spec, p.Child("annotations")))
	}
	f.add(alwaysRestarts(&s.Template.Spec, "StatefulSet", at.Child("template", "spec")))
	return f.list
}

// statefulTemplate is the template as its pods will be: with the volumes of
// the claims, and hostnames of their own.
func statefulTemplate(s *appsv1.StatefulSetSpec) *corev1.PodTemplateSpec {
	t := s.Template
	t.Spec.Hostname, t.Spec.Subdomain = "", ""
	if len(s.VolumeClaimTemplates) == 0 {
		return &t
	}
	claims := map[string]bool{}
	var volumes []corev1.Volume
	for _, c := range s.VolumeClaimTemplates {
		claims[c.Name] = true
		v := corev1.Volume{Name: c.Name}
		v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name}
		volumes = append(volumes, v)
	}
	for _, v := range s.Template.Spec.Volumes {
		if !claims[v.Name] {
			volumes = append(volumes, v)
		}
	}
	t.Spec.Volumes = volumes
	return &t
}

func validateStatefulStrategy(s *appsv1.StatefulSetUpdateStrategy, at *field.Path) field.ErrorList {
	var f faults
	switch s.Type {
	case "":
		f.required(at, "")
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.RollingUpdate != nil {
			f.invalid(at.Child("rollingUpdate"), s.RollingUpdate, "only allowed for updateStrategy 'RollingUpdate'")
		}
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if s.RollingUpdate == nil {
			break
		}
		f.add(nonnegativeOpt(s.RollingUpdate.Partition, at.Child("rollingUpdate", "partition")))
		if u := s.RollingUpdate.MaxUnavailable; u != nil {
			p := at.Child("rollingUpdate", "maxUnavailable")
			f.add(intOrPercent(*u, p))
			if countOf(u) == 0 {
				f.invalid(p, *u, "cannot be 0")
			}
			f.add(atMostHundredPercent(*u, p))
		}
	default:
		f.invalid(at, s, "must be 'RollingUpdate' or 'OnDelete'")
	}
	return f.list
}

func validateStatefulSetStatus(_ context.Context, s, old *appsv1.StatefulSet) field.ErrorList {
	var f faults
	at := field.NewPath("status")
	t := &s.Status
	ready, current := count{"readyReplicas", int64(t.ReadyReplicas)}, count{"currentReplicas", int64(t.CurrentReplicas)}
	updated, available := count{"updatedReplicas", int64(t.UpdatedReplicas)}, count{"availableReplicas", int64(t.AvailableReplicas)}
	f.add(nonnegativeCounts(at, count{"replicas", int64(t.Replicas)}, ready, current, updated, available,
		count{"observedGeneration", t.ObservedGeneration}, count{"collisionCount", int64(deref(t.CollisionCount, 0))}))
	f.add(notMore(int64(t.Replicas), "status.replicas", at, ready, current, updated, available))
	f.add(notMore(ready.value, "status.readyReplicas", at, available))
	f.add(notDecremented(t.CollisionCount, old.Status.CollisionCount, at))
	return f.list
}
