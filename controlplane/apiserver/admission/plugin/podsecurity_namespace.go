package plugin

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

const (
	// mostPods and longestCheck bound what is looked at when a namespace
	// becomes stricter.
	mostPods     = 3000
	longestCheck = time.Second
)

// namespace refuses labels that say nothing, and warns of pods that a stricter
// standard would not have let in.
func (p *podSecurity) namespace(ctx context.Context, a *admission.Attributes, ns *corev1.Namespace) error {
	now, errs := api.PolicyToEvaluate(ns.Labels, p.defaults)
	old, update := a.Old.(*corev1.Namespace)
	if !update {
		if len(errs) > 0 {
			return apierrors.NewInvalid(a.Kind.GroupKind(), a.Name, errs)
		}
		if slices.Contains(p.namespaces, ns.Name) {
			p.warnExempt(ctx, a, ns, now)
		}
		return nil
	}
	was, wrong := api.PolicyToEvaluate(old.Labels, p.defaults)
	switch {
	case len(errs) > 0 && (len(wrong) == 0 || !reflect.DeepEqual(errs, wrong)):
		return apierrors.NewInvalid(a.Kind.GroupKind(), a.Name, errs)
	case now.Enforce == was.Enforce, now.Enforce.Level == api.LevelPrivileged:
		return nil
	case now.Enforce.Version == was.Enforce.Version && api.CompareLevels(now.Enforce.Level, was.Enforce.Level) < 1:
		return nil
	case slices.Contains(p.namespaces, ns.Name):
		p.warnExempt(ctx, a, ns, now)
		return nil
	}
	rules, err := p.rules()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	var pods []*corev1.Pod
	watchcache.Each(p.cache.Resource(corev1.SchemeGroupVersion.WithResource("pods")), ns.Name, func(pod *corev1.Pod) bool {
		if c := pod.Spec.RuntimeClassName; c == nil || !slices.Contains(p.classes, *c) {
			pods = append(pods, pod)
		}
		return true
	})
	longest := longestCheck
	if end, ok := ctx.Deadline(); ok { // the write itself needs time, too
		longest = min(longest, time.Until(end)/2)
	}
	for _, text := range violations(ctx, rules, ns.Name, now.Enforce, pods, time.Now().Add(longest)) {
		a.Warn(ctx, text)
	}
	return nil
}

// warnExempt says that the labels of an exempt namespace mean nothing.
func (p *podSecurity) warnExempt(ctx context.Context, a *admission.Attributes, ns *corev1.Namespace, now api.Policy) {
	if now.FullyPrivileged() || now.Equivalent(&p.defaults) {
		return
	}
	var set []string
	for _, mode := range []struct {
		name, level, version string
		api.LevelVersion
	}{
		{"enforce", api.EnforceLevelLabel, api.EnforceVersionLabel, now.Enforce},
		{"audit", api.AuditLevelLabel, api.AuditVersionLabel, now.Audit},
		{"warn", api.WarnLevelLabel, api.WarnVersionLabel, now.Warn},
	} {
		_, level := ns.Labels[mode.level]
		_, version := ns.Labels[mode.version]
		if mode.Level != api.LevelPrivileged && (level || version) {
			set = append(set, mode.name+"="+mode.String())
		}
	}
	a.Warn(ctx, fmt.Sprintf("namespace %q is exempt from Pod Security, and the policy (%s) will be ignored", ns.Name, strings.Join(set, ", ")))
}

// violations are the warnings about pods that violate a standard.
func violations(ctx context.Context, rules policy.Evaluator, namespace string, standard api.LevelVersion, pods []*corev1.Pod, until time.Time) (warnings []string) {
	pods = eachKindFirst(pods)
	total, checked := len(pods), min(len(pods), mostPods)
	found := map[string][]string{} // reason to pods
	for i, pod := range pods[:checked] {
		if r := policy.AggregateCheckResults(rules.EvaluatePod(standard, &pod.ObjectMeta, &pod.Spec)); !r.Allowed {
			found[r.ForbiddenReason()] = append(found[r.ForbiddenReason()], pod.Name)
		}
		if ctx.Err() != nil || time.Now().After(until) {
			checked = i + 1
			break
		}
	}
	if checked < total {
		warnings = append(warnings, fmt.Sprintf("new PodSecurity enforce level only checked against the first %d of %d existing pods", checked, total))
	}
	if len(found) == 0 {
		return warnings
	}
	warnings = append(warnings, fmt.Sprintf("existing pods in namespace %q violate the new PodSecurity enforce level %q", namespace, standard.String()))
	var each []string
	for reason, names := range found {
		others := ""
		switch n := len(names) - 1; n {
		case 0:
		case 1:
			others = " (and 1 other pod)"
		default:
			others = fmt.Sprintf(" (and %d other pods)", n)
		}
		each = append(each, fmt.Sprintf("%s%s: %s", slices.Min(names), others, reason))
	}
	slices.Sort(each)
	return append(warnings, each...)
}

// eachKindFirst puts the first pod of each controller before its others, which
// are like it.
func eachKindFirst(pods []*corev1.Pod) []*corev1.Pod {
	var first, rest []*corev1.Pod
	seen := map[types.UID]bool{}
	for _, pod := range pods {
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref != nil && seen[ref.UID] {
			rest = append(rest, pod)
			continue
		}
		if ref != nil {
			seen[ref.UID] = true
		}
		first = append(first, pod)
	}
	return append(first, rest...)
}
