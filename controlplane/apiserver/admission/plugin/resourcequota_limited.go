package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	quotaconfig "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/v1"

	"knarr/controlplane/apiserver/admission"
	"knarr/internal/quota"
)

// A cover is what the quotas of a namespace limit of an object.
type cover struct {
	names  []corev1.ResourceName
	scopes []corev1.ResourceQuotaScope
}

// scopesOf adds the scopes of a quota that have the object in them.
func (c *cover) scopesOf(q *corev1.ResourceQuota, measure quota.Measure, obj runtime.Object) error {
	in, err := measure.Matching(quota.Scopes(&q.Spec), obj)
	if err != nil {
		return fmt.Errorf("error matching scopes of quota %s, err: %w", q.Name, err)
	}
	for _, s := range in {
		c.scopes = append(c.scopes, s.ScopeName)
	}
	return nil
}

// check refuses what the configuration wants covered by a quota and is not.
func (c *cover) check(a *admission.Attributes, measure quota.Measure, limited []quotaconfig.LimitedResource, use corev1.ResourceList) error {
	var names []corev1.ResourceName
	scopes := []corev1.ScopedResourceSelectorRequirement{}
	for _, l := range limited {
		in, err := measure.Matching(l.MatchScopes, a.Object)
		if err != nil {
			return nil // a selector that says nothing limits nothing
		}
		for _, s := range in {
			if !slices.Contains(c.scopes, s.ScopeName) {
				scopes = append(scopes, s)
			}
		}
		if l.APIGroup == a.Resource.Group && l.Resource == a.Resource.Resource {
			names = append(names, consumed(use, l.MatchContains)...)
		}
	}
	names = slices.DeleteFunc(names, func(n corev1.ResourceName) bool { return slices.Contains(c.names, n) })
	if len(names) > 0 {
		slices.Sort(names)
		return forbidden(a, fmt.Errorf("insufficient quota to consume: %s", join(slices.Compact(names))))
	}
	if len(scopes) > 0 {
		return fmt.Errorf("insufficient quota to match these scopes: %v", scopes)
	}
	return nil
}

// consumed are the resources used whose names contain one of parts.
func consumed(use corev1.ResourceList, parts []string) (names []corev1.ResourceName) {
	for _, n := range slices.Sorted(maps.Keys(use)) {
		if q := use[n]; q.Sign() == 1 && slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(string(n), p) }) {
			names = append(names, n)
		}
	}
	return names
}
