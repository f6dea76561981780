package registry

import (
	"context"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// updatablePodFields are all that an update may change.
const updatablePodFields = "`spec.containers[*].image`," +
	"`spec.initContainers[*].image`," +
	"`spec.activeDeadlineSeconds`," +
	"`spec.tolerations` (only additions to existing tolerations)," +
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

func validatePodUpdate(p, old *corev1.Pod) field.ErrorList {
	var f faults
	spec := field.NewPath("spec")
	f.add(validatePodContent(p))
	f.add(validatePodAnnotationUpdate(p, old, field.NewPath("metadata", "annotations")))
	images := func(now, was []corev1.Container, at *field.Path) bool {
		if len(now) != len(was) {
			f.forbidden(at, "pod updates may not add or remove containers")
			return false
		}
		for i := range now {
			if now[i].Image == "" {
				f.required(at.Index(i).Child("image"), "")
			}
			f.add(trimmedImage(&now[i], at.Index(i)))
		}
		return true
	}
	if !images(p.Spec.Containers, old.Spec.Containers, spec.Child("containers")) ||
		!images(p.Spec.InitContainers, old.Spec.InitContainers, spec.Child("initContainers")) {
		return f.list
	}
	at := spec.Child("activeDeadlineSeconds")
	switch now, was := p.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds; {
	case now != nil && (*now < 0 || *now > math.MaxInt32):
		f.invalid(at, *now, utilvalidation.InclusiveRangeError(0, math.MaxInt32))
		return f.list
	case now != nil && was != nil && *was < *now:
		f.invalid(at, *now, "must be less than or equal to previous value")
		return f.list
	case now == nil && was != nil:
		f.invalid(at, now, "must not update from a positive integer to nil value")
	}
	f.add(onlyAddedTolerations(p.Spec.Tolerations, old.Spec.Tolerations, spec.Child("tolerations")))
	f.add(onlyRemovedGates(p.Spec.SchedulingGates, old.Spec.SchedulingGates, spec.Child("schedulingGates")))
	if same(p.Spec, old.Spec) {
		return f.list
	}
	rest := p.Spec.DeepCopy()
	for i := range rest.Containers {
		rest.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range rest.InitContainers {
		rest.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	rest.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	rest.SchedulingGates = old.Spec.SchedulingGates
	rest.Tolerations = old.Spec.Tolerations
	if was := old.Spec.TerminationGracePeriodSeconds; deref(was, 0) < 0 && deref(rest.TerminationGracePeriodSeconds, 0) == 1 {
		rest.TerminationGracePeriodSeconds = was
	}
	if len(old.Spec.SchedulingGates) > 0 {
		f.add(validateGatedUpdate(rest, &old.Spec, spec))
	}
	if !same(*rest, old.Spec) {
		f.forbidden(spec, fmt.Sprintf("pod updates may not change fields other than %s\n%v", updatablePodFields, Difference(old.Spec, *rest)))
	}
	return f.list
}

func onlyAddedTolerations(now, was []corev1.Toleration, at *field.Path) field.ErrorList {
	for _, o := range was {
		if !slices.ContainsFunc(now, func(n corev1.Toleration) bool {
			n.TolerationSeconds = o.TolerationSeconds
			return same(n, o)
		}) {
			return field.ErrorList{field.Forbidden(at, "existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return ValidateTolerations(now, at)
}

func onlyRemovedGates(now, was []corev1.PodSchedulingGate, at *field.Path) (errs field.ErrorList) {
	for i, g := range now {
		if !slices.Contains(was, g) {
			errs = append(errs, field.Forbidden(at.Index(i).Child("name"),
				fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", g.Name)))
		}
	}
	return errs
}

// validateGatedUpdate: a gated pod may be restricted to fewer nodes. It puts
// the old values into s, so that the rest can be compared.
func validateGatedUpdate(s, old *corev1.PodSpec, at *field.Path) field.ErrorList {
	var f faults
	for _, k := range sortedKeys(old.NodeSelector) {
		if v, ok := s.NodeSelector[k]; !ok || v != old.NodeSelector[k] {
			f.invalid(at.Child("nodeSelector"), s.NodeSelector, "only additions to spec.nodeSelector are allowed (no mutations or deletions)")
			break
		}
	}
	s.NodeSelector = old.NodeSelector
	nodes := func(a *corev1.Affinity) *corev1.NodeAffinity {
		if a == nil {
			return nil
		}
		return a.NodeAffinity
	}
	now, was := nodes(s.Affinity), nodes(old.Affinity)
	if same(now, was) {
		return f.list
	}
	f.add(onlyNarrowed(now, was, at.Child("affinity", "nodeAffinity", requiredTerms, "nodeSelectorTerms")))
	switch {
	case s.Affinity == nil:
		s.Affinity = &corev1.Affinity{NodeAffinity: was}
	case old.Affinity == nil && s.Affinity.PodAffinity == nil && s.Affinity.PodAntiAffinity == nil:
		s.Affinity = nil
	default:
		s.Affinity.NodeAffinity = was
	}
	return f.list
}

func onlyNarrowed(now, was *corev1.NodeAffinity, at *field.Path) field.ErrorList {
	if was == nil || was.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	var f faults
	before := was.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	var terms []corev1.NodeSelectorTerm
	if now != nil && now.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms = now.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	if len(before) > 0 && len(before) != len(terms) {
		f.invalid(at, terms, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
		return f.list
	}
	for i := range before {
		if !narrows(terms[i], before[i]) {
			f.invalid(at.Index(i), terms[i], "only additions are allowed (no mutations or deletions)")
		}
	}
	return f.list
}

func narrows(now, was corev1.NodeSelectorTerm) bool {
	if len(was.MatchExpressions) == 0 && len(was.MatchFields) == 0 {
		// an empty term matches nothing: anything more widens it
		return len(now.MatchExpressions) == 0 && len(now.MatchFields) == 0
	}
	begins := func(list, start []corev1.NodeSelectorRequirement) bool {
		return len(list) >= len(start) && same(list[:len(start)], start)
	}
	return begins(now.MatchExpressions, was.MatchExpressions) && begins(now.MatchFields, was.MatchFields)
}

func validateEphemeralUpdate(_ context.Context, p, old *corev1.Pod) field.ErrorList {
	if _, ok := old.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")}
	}
	var f faults
	f.add(validatePodContent(p))
	f.add(validatePodAnnotationUpdate(p, old, field.NewPath("metadata", "annotations")))
	at := field.NewPath("spec", "ephemeralContainers")
	for _, was := range old.Spec.EphemeralContainers {
		i := slices.IndexFunc(p.Spec.EphemeralContainers, func(e corev1.EphemeralContainer) bool { return e.Name == was.Name })
		switch {
		case i < 0:
			f.forbidden(at, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", was.Name))
		case !same(was, p.Spec.EphemeralContainers[i]):
			f.forbidden(at, fmt.Sprintf("existing ephemeral containers %q may not be changed\n%v", was.Name, Difference(was, p.Spec.EphemeralContainers[i])))
		}
	}
	return f.list
}
