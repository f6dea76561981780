package plugin

import (
	"context"
	"fmt"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

// podSecurity holds pods to the standards that their namespace's labels name.
// What makes pods is only warned about: its pods are judged when they come.
type podSecurity struct {
	cache *watchcache.Cache
	rules func() (policy.Evaluator, error)
	podSecuritySettings
}

func newPodSecurity(cache *watchcache.Cache, s *podSecuritySettings) *podSecurity {
	if s == nil {
		s = &podSecuritySettings{defaults: everythingGoes()}
	}
	return &podSecurity{cache, sync.OnceValues(func() (policy.Evaluator, error) {
		return policy.NewEvaluator(policy.DefaultChecks(), nil)
	}), *s}
}

func (*podSecurity) Name() string { return "PodSecurity" }

// doors are the subresources of a pod that leave its spec alone.
var doors = map[string]bool{
	"exec": true, "attach": true, "binding": true, "eviction": true,
	"log": true, "portforward": true, "proxy": true, "status": true,
}

func (p *podSecurity) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Operation != admission.Create && a.Operation != admission.Update {
		return nil
	}
	if ns, ok := a.Object.(*corev1.Namespace); ok {
		if !is(a, "namespaces", "") {
			return nil
		}
		return p.namespace(ctx, a, ns)
	}
	pod, isPod := a.Object.(*corev1.Pod)
	meta, spec := podOf(a.Object)
	if spec == nil || isPod && doors[a.Subresource] || !isPod && a.Subresource != "" {
		return nil
	}
	if exempt := p.exempt(a); exempt != "" {
		a.Annotate(ctx, api.AuditAnnotationPrefix+api.ExemptionReasonAnnotationKey, exempt)
		return nil
	}
	ns, err := lookup[*corev1.Namespace](ctx, p.cache, corev1.SchemeGroupVersion.WithResource("namespaces"), a.Namespace, a.Namespace)
	switch {
	case err != nil && isPod:
		a.Annotate(ctx, api.AuditAnnotationPrefix+"error", fmt.Sprintf("failed to lookup namespace %q: %v", a.Namespace, err))
		return apierrors.NewInternalError(fmt.Errorf("failed to lookup namespace %q", a.Namespace))
	case err != nil:
		a.Annotate(ctx, api.AuditAnnotationPrefix+"error", fmt.Sprintf("failed to lookup namespace %q: %v", a.Namespace, err))
		return nil
	}
	standard, errs := api.PolicyToEvaluate(ns.Labels, p.defaults)
	switch {
	case len(errs) > 0:
	case isPod && standard.FullyPrivileged():
		a.Annotate(ctx, api.AuditAnnotationPrefix+api.EnforcedPolicyAnnotationKey, privileged)
		return nil
	case !isPod && standard.Warn.Level == api.LevelPrivileged && standard.Audit.Level == api.LevelPrivileged:
		return nil
	}
	if old, ok := a.Old.(*corev1.Pod); ok && isPod && sameImages(pod, old) {
		return nil
	}
	if spec.RuntimeClassName != nil && slices.Contains(p.classes, *spec.RuntimeClassName) && *spec.RuntimeClassName != "" {
		a.Annotate(ctx, api.AuditAnnotationPrefix+api.ExemptionReasonAnnotationKey, "runtimeClass")
		return nil
	}
	if len(errs) > 0 {
		a.Annotate(ctx, api.AuditAnnotationPrefix+"error", fmt.Sprintf("Failed to parse policy: %v", errs.ToAggregate()))
	}
	return p.judge(ctx, a, standard, meta, spec, isPod)
}

// judge refuses, records and warns as the standard says.
func (p *podSecurity) judge(ctx context.Context, a *admission.Attributes, standard api.Policy, meta *metav1.ObjectMeta, spec *corev1.PodSpec, enforce bool) error {
	rules, err := p.rules()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	known := map[api.LevelVersion]policy.AggregateCheckResult{}
	result := func(lv api.LevelVersion) policy.AggregateCheckResult {
		r, ok := known[lv]
		if !ok {
			r = policy.AggregateCheckResults(rules.EvaluatePod(lv, meta, spec))
			known[lv] = r
		}
		return r
	}
	var refusal error
	if enforce {
		a.Annotate(ctx, api.AuditAnnotationPrefix+api.EnforcedPolicyAnnotationKey, standard.Enforce.String())
		if r := result(standard.Enforce); !r.Allowed {
			refusal = forbidden(a, fmt.Errorf("violates PodSecurity %q: %s", standard.Enforce.String(), r.ForbiddenDetail()))
		}
	}
	if r := result(standard.Audit); !r.Allowed {
		a.Annotate(ctx, api.AuditAnnotationPrefix+api.AuditViolationsAnnotationKey,
			fmt.Sprintf("would violate PodSecurity %q: %s", standard.Audit.String(), r.ForbiddenDetail()))
	}
	if r := result(standard.Warn); refusal == nil && !r.Allowed {
		a.Warn(ctx, fmt.Sprintf("would violate PodSecurity %q: %s", standard.Warn.String(), r.ForbiddenDetail()))
	}
	return refusal
}

// podOf is what o says of the pods it is or makes.
func podOf(o runtime.Object) (*metav1.ObjectMeta, *corev1.PodSpec) {
	var t *corev1.PodTemplateSpec
	switch o := o.(type) {
	case *corev1.Pod:
		return &o.ObjectMeta, &o.Spec
	case *corev1.PodTemplate:
		t = &o.Template
	case *corev1.ReplicationController:
		t = o.Spec.Template
	case *appsv1.ReplicaSet:
		t = &o.Spec.Template
	case *appsv1.Deployment:
		t = &o.Spec.Template
	case *appsv1.DaemonSet:
		t = &o.Spec.Template
	case *appsv1.StatefulSet:
		t = &o.Spec.Template
	case *batchv1.Job:
		t = &o.Spec.Template
	case *batchv1.CronJob:
		t = &o.Spec.JobTemplate.Spec.Template
	}
	if t == nil {
		return nil, nil
	}
	return &t.ObjectMeta, &t.Spec
}

// sameImages says that an update changes nothing that standards are about: of
// all they are about only images and ephemeral containers can change.
func sameImages(pod, old *corev1.Pod) bool {
	for _, both := range [][2][]corev1.Container{{pod.Spec.Containers, old.Spec.Containers}, {pod.Spec.InitContainers, old.Spec.InitContainers}} {
		if len(both[0]) != len(both[1]) {
			return false
		}
		for i := range both[0] {
			if both[0][i].Image != both[1][i].Image {
				return false
			}
		}
	}
	had := map[string]string{}
	for _, c := range old.Spec.EphemeralContainers {
		had[c.Name] = c.Image
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if image, ok := had[c.Name]; !ok || image != c.Image {
			return false
		}
	}
	return true
}
