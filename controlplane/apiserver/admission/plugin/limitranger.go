package plugin

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
)

// limitRanger fills in what containers do not say they need, and refuses pods
// and claims outside their namespace's limits.
type limitRanger struct{ cache *watchcache.Cache }

func (*limitRanger) Name() string { return "LimitRanger" }

// limits are those that concern the write.
func (l *limitRanger) limits(a *admission.Attributes) (limits []corev1.LimitRange) {
	if a.Resource.Group != "" || a.Namespace == "" {
		return nil
	}
	resize := is(a, "pods", "resize") && a.Operation == admission.Update
	pod := is(a, "pods", "") && a.Operation == admission.Create
	claim := is(a, "persistentvolumeclaims", "") && (a.Operation == admission.Create || a.Operation == admission.Update)
	if !resize && !pod && !claim {
		return nil
	}
	if old, ok := a.Old.(metav1.Object); ok && old.GetDeletionTimestamp() != nil {
		return nil
	}
	watchcache.Each(l.cache.Resource(corev1.SchemeGroupVersion.WithResource("limitranges")), a.Namespace, func(r *corev1.LimitRange) bool {
		limits = append(limits, *r)
		return true
	})
	return limits
}

func (l *limitRanger) Admit(_ context.Context, a *admission.Attributes) error {
	if pod, ok := a.Object.(*corev1.Pod); ok {
		for _, r := range l.limits(a) {
			fillPod(pod, r.Spec.Limits)
		}
	}
	return nil
}

func (l *limitRanger) Validate(_ context.Context, a *admission.Attributes) error {
	for _, r := range l.limits(a) {
		var errs []error
		for i := range r.Spec.Limits {
			switch o := a.Object.(type) {
			case *corev1.Pod:
				errs = append(errs, podWithin(&r.Spec.Limits[i], o)...)
			case *corev1.PersistentVolumeClaim:
				errs = append(errs, claimWithin(&r.Spec.Limits[i], o)...)
			}
		}
		if err := utilerrors.NewAggregate(errs); err != nil {
			return forbidden(a, err)
		}
	}
	return nil
}

// fillPod gives the pod's containers the defaults, and notes which.
func fillPod(pod *corev1.Pod, limits []corev1.LimitRangeItem) {
	requests, most := corev1.ResourceList{}, corev1.ResourceList{}
	for _, item := range limits {
		if item.Type == corev1.LimitTypeContainer {
			merge(requests, item.DefaultRequest)
			merge(most, item.Default)
		}
	}
	var notes []string
	fill := func(c *corev1.Container, kind string) {
		for _, part := range []struct {
			list     *corev1.ResourceList
			defaults corev1.ResourceList
			word     string
		}{{&c.Resources.Requests, requests, "request"}, {&c.Resources.Limits, most, "limit"}} {
			var set []string
			for name, q := range part.defaults {
				if _, ok := (*part.list)[name]; ok {
					continue
				}
				if *part.list == nil {
					*part.list = corev1.ResourceList{}
				}
				(*part.list)[name] = q.DeepCopy()
				set = append(set, string(name))
			}
			if len(set) > 0 {
				slices.Sort(set)
				notes = append(notes, strings.Join(set, ", ")+" "+part.word+" for "+kind+" "+c.Name)
			}
		}
	}
	for i := range pod.Spec.Containers {
		fill(&pod.Spec.Containers[i], "container")
	}
	for i := range pod.Spec.InitContainers {
		fill(&pod.Spec.InitContainers[i], "init container")
	}
	if len(notes) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "kubernetes.io/limit-ranger", "LimitRanger plugin set: "+strings.Join(notes, "; "))
	}
}

func merge(into, from corev1.ResourceList) {
	for name, q := range from {
		into[name] = q
	}
}
