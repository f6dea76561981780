// Package quota measures objects for ResourceQuotas: which resources of a
// quota an object concerns, whether the quota's scopes select it, and how much
// it uses. The API server charges by it, the resourcequota controller counts by
// it. It reads objects and writes nothing.
package quota

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A Measure is how the objects of one resource are accounted for.
type Measure struct {
	// Counts reports whether a quota's resource is about these objects.
	Counts func(corev1.ResourceName) bool
	// Use is what obj uses now.
	Use func(obj runtime.Object, now time.Time) corev1.ResourceList
	// Selects reports whether a scope has obj in it. Nil: no scope has.
	Selects func(corev1.ScopedResourceSelectorRequirement, runtime.Object) (bool, error)
	// Demand refuses an object that does not say what it needs of required.
	// Nil: everything will do.
	Demand func(required []corev1.ResourceName, obj runtime.Object) error
}

// legacy are resources that are counted under a name of their own too.
var legacy = map[string]corev1.ResourceName{
	"configmaps":             corev1.ResourceConfigMaps,
	"resourcequotas":         corev1.ResourceQuotas,
	"replicationcontrollers": corev1.ResourceReplicationControllers,
	"secrets":                corev1.ResourceSecrets,
}

// ignored are questions that are stored nowhere, and events.
var ignored = map[schema.GroupResource]bool{
	{Resource: "bindings"}:                                                 true,
	{Resource: "componentstatuses"}:                                        true,
	{Group: "authentication.k8s.io", Resource: "tokenreviews"}:             true,
	{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"}:       true,
	{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}:      true,
	{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}:  true,
	{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}: true,
	{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"}:   true,
	{Resource: "events"}:                         true,
	{Group: "events.k8s.io", Resource: "events"}: true,
}

// For is the measure of a resource; false when quotas leave it alone.
func For(gr schema.GroupResource) (Measure, bool) {
	if ignored[gr] {
		return Measure{}, false
	}
	switch gr {
	case schema.GroupResource{Resource: "pods"}:
		return pods, true
	case schema.GroupResource{Resource: "services"}:
		return services, true
	case schema.GroupResource{Resource: "persistentvolumeclaims"}:
		return claims, true
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}:
		return resourceClaims, true
	}
	names := []corev1.ResourceName{CountOf(gr)}
	if alias := legacy[gr.Resource]; alias != "" && gr.Group == "" {
		names = append(names, alias)
	}
	return Measure{
		Counts: func(n corev1.ResourceName) bool { return slices.Contains(names, n) },
		Use: func(runtime.Object, time.Time) corev1.ResourceList {
			use := corev1.ResourceList{}
			for _, n := range names {
				use[n] = count(1)
			}
			return use
		},
	}, true
}

// CountOf is the name under which a quota counts the objects of a resource.
func CountOf(gr schema.GroupResource) corev1.ResourceName {
	return corev1.ResourceName("count/" + gr.String())
}

// Counted is the resource that a quota's name counts objects of, whose
// measure is nothing but their number; false for all else.
func Counted(name corev1.ResourceName) (schema.GroupResource, bool) {
	for res, alias := range legacy {
		if name == alias {
			return schema.GroupResource{Resource: res}, true
		}
	}
	s, ok := strings.CutPrefix(string(name), "count/")
	if !ok {
		return schema.GroupResource{}, false
	}
	gr := schema.ParseGroupResource(s)
	switch {
	case ignored[gr], gr == schema.GroupResource{Resource: "pods"}, gr == schema.GroupResource{Resource: "services"},
		gr == schema.GroupResource{Resource: "persistentvolumeclaims"},
		gr == schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}:
		return gr, false
	}
	return gr, true
}

// Of are the names in hard that m accounts for, sorted.
func (m Measure) Of(hard corev1.ResourceList) []corev1.ResourceName {
	var names []corev1.ResourceName
	for n := range hard {
		if m.Counts(n) {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names
}

// Matches reports whether all scopes of spec have obj in them.
func (m Measure) Matches(spec *corev1.ResourceQuotaSpec, obj runtime.Object) (bool, error) {
	for _, s := range Scopes(spec) {
		if m.Selects == nil {
			return false, nil
		}
		if ok, err := m.Selects(s, obj); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// Matching are those of the scopes that have obj in them.
func (m Measure) Matching(scopes []corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (in []corev1.ScopedResourceSelectorRequirement, err error) {
	if m.Selects == nil {
		return nil, nil
	}
	for _, s := range scopes {
		ok, err := m.Selects(s, obj)
		if err != nil {
			return nil, err
		}
		if ok {
			in = append(in, s)
		}
	}
	return in, nil
}

// Scopes are both forms of scopes in one.
func Scopes(spec *corev1.ResourceQuotaSpec) (all []corev1.ScopedResourceSelectorRequirement) {
	for _, s := range spec.Scopes {
		all = append(all, corev1.ScopedResourceSelectorRequirement{ScopeName: s, Operator: corev1.ScopeSelectorOpExists})
	}
	if spec.ScopeSelector != nil {
		all = append(all, spec.ScopeSelector.MatchExpressions...)
	}
	return all
}

// Number is an amount of objects.
func Number(n int) resource.Quantity { return count(int64(n)) }

func count(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }
