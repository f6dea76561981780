package registry

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	requiredTerms  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferredTerms = "preferredDuringSchedulingIgnoredDuringExecution"
	badWeight      = "must be in the range 1-100"
)

func validateAffinity(a *corev1.Affinity, at *field.Path) field.ErrorList {
	var f faults
	if n := a.NodeAffinity; n != nil {
		p := at.Child("nodeAffinity")
		if n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			f.add(validateNodeSelector(n.RequiredDuringSchedulingIgnoredDuringExecution, p.Child(requiredTerms)))
		}
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			t, q := &n.PreferredDuringSchedulingIgnoredDuringExecution[i], p.Child(preferredTerms).Index(i)
			if t.Weight <= 0 || t.Weight > 100 {
				f.invalid(q.Child("weight"), t.Weight, badWeight)
			}
			f.add(validateNodeTerm(&t.Preference, true, q.Child("preference")))
		}
	}
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, at *field.Path) {
		for i := range required {
			f.add(validatePodTerm(&required[i], at.Child(requiredTerms).Index(i)))
		}
		for i := range preferred {
			p := at.Child(preferredTerms).Index(i)
			if w := preferred[i].Weight; w <= 0 || w > 100 {
				f.invalid(p.Child("weight"), w, badWeight)
			}
			f.add(validatePodTerm(&preferred[i].PodAffinityTerm, p.Child("podAffinityTerm")))
		}
	}
	if p := a.PodAffinity; p != nil {
		terms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("podAffinity"))
	}
	if p := a.PodAntiAffinity; p != nil {
		terms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("podAntiAffinity"))
	}
	return f.list
}

func validateNodeSelector(s *corev1.NodeSelector, at *field.Path) field.ErrorList {
	var f faults
	p := at.Child("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		f.required(p, "must have at least one node selector term")
	}
	for i := range s.NodeSelectorTerms {
		f.add(validateNodeTerm(&s.NodeSelectorTerms[i], false, p.Index(i)))
	}
	return f.list
}

// validateNodeTerm checks a term; preferences may name values that no label
// can have.
func validateNodeTerm(t *corev1.NodeSelectorTerm, anyValue bool, at *field.Path) field.ErrorList {
	var f faults
	for i, r := range t.MatchExpressions {
		p := at.Child("matchExpressions").Index(i)
		switch r.Operator {
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
			if len(r.Values) == 0 {
				f.required(p.Child("values"), "must be specified when `operator` is 'In' or 'NotIn'")
			}
		case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
			if len(r.Values) > 0 {
				f.forbidden(p.Child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
			}
		case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
			if len(r.Values) != 1 {
				f.required(p.Child("values"), "must be specified single value when `operator` is 'Lt' or 'Gt'")
			}
		default:
			f.invalid(p.Child("operator"), r.Operator, "not a valid selector operator")
		}
		f.add(metavalidation.ValidateLabelName(r.Key, p.Child("key")))
		if anyValue {
			continue
		}
		for j, v := range r.Values {
			f.add(invalid(utilvalidation.IsValidLabelValue(v), v, p.Child("values").Index(j)))
		}
	}
	for i, r := range t.MatchFields {
		p := at.Child("matchFields").Index(i)
		switch r.Operator {
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
			if len(r.Values) != 1 {
				f.required(p.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
			}
		default:
			f.invalid(p.Child("operator"), r.Operator, "not a valid selector operator")
		}
		if r.Key != metav1.ObjectNameField {
			f.invalid(p.Child("key"), r.Key, "not a valid field selector key")
			continue
		}
		for j, v := range r.Values {
			f.add(invalid(NameIsDNSSubdomain(v, false), v, p.Child("values").Index(j)))
		}
	}
	return f.list
}

func validatePodTerm(t *corev1.PodAffinityTerm, at *field.Path) field.ErrorList {
	var f faults
	f.add(metavalidation.ValidateLabelSelector(t.LabelSelector, metavalidation.LabelSelectorValidationOptions{}, at.Child("labelSelector")))
	f.add(metavalidation.ValidateLabelSelector(t.NamespaceSelector, metavalidation.LabelSelectorValidationOptions{}, at.Child("namespaceSelector")))
	for _, n := range t.Namespaces {
		f.add(invalid(NameIsDNSLabel(n, false), n, at.Child("namespace")))
	}
	f.add(validateLabelKeys(t.MatchLabelKeys, t.MismatchLabelKeys, t.LabelSelector, at))
	if t.TopologyKey == "" {
		f.required(at.Child("topologyKey"), "can not be empty")
	}
	f.add(metavalidation.ValidateLabelName(t.TopologyKey, at.Child("topologyKey")))
	return f.list
}

// validateLabelKeys checks keys whose values are taken from the pod.
func validateLabelKeys(match, mismatch []string, s *metav1.LabelSelector, at *field.Path) field.ErrorList {
	var f faults
	keys := func(list []string, at *field.Path) {
		if len(list) > 0 && s == nil {
			f.forbidden(at, "must not be specified when labelSelector is not set")
			return
		}
		for i, k := range list {
			f.add(metavalidation.ValidateLabelName(k, at.Index(i)))
		}
	}
	keys(match, at.Child("matchLabelKeys"))
	keys(mismatch, at.Child("mismatchLabelKeys"))
	index := map[string]int{}
	for i, k := range match {
		index[k] = i
	}
	if s != nil {
		// the key's own expression is what creation merged in; a second is the user's
		seen := map[string]bool{}
		for k := range s.MatchLabels {
			seen[k] = true
		}
		for _, e := range s.MatchExpressions {
			if i, ok := index[e.Key]; ok && seen[e.Key] {
				f.invalid(at.Index(i), e.Key, "exists in both matchLabelKeys and labelSelector")
			}
			seen[e.Key] = true
		}
	}
	for _, k := range mismatch {
		if i, ok := index[k]; ok {
			f.invalid(at.Child("matchLabelKeys").Index(i), k, "exists in both matchLabelKeys and mismatchLabelKeys")
		}
	}
	return f.list
}

func (c *podCheck) checkSpread(at *field.Path) {
	list := c.spec.TopologySpreadConstraints
	for i, s := range list {
		p := at.Index(i)
		c.add(positive(s.MaxSkew, p.Child("maxSkew")))
		if s.TopologyKey == "" {
			c.required(p.Child("topologyKey"), "can not be empty")
		}
		c.add(oneOf(s.WhenUnsatisfiable, p.Child("whenUnsatisfiable"), corev1.DoNotSchedule, corev1.ScheduleAnyway))
		for _, other := range list[i+1:] {
			if other.TopologyKey == s.TopologyKey && other.WhenUnsatisfiable == s.WhenUnsatisfiable {
				c.duplicate(p.Child("{topologyKey, whenUnsatisfiable}"), fmt.Sprintf("{%v, %v}", s.TopologyKey, s.WhenUnsatisfiable))
				break
			}
		}
		if s.MinDomains != nil {
			c.add(positive(*s.MinDomains, p.Child("minDomains")))
			if s.WhenUnsatisfiable != corev1.DoNotSchedule {
				c.invalid(p.Child("minDomains"), s.MinDomains,
					fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule, s.WhenUnsatisfiable))
			}
		}
		policy := func(v *corev1.NodeInclusionPolicy, name string) {
			if v != nil {
				c.add(oneOf(*v, p.Child(name), corev1.NodeInclusionPolicyIgnore, corev1.NodeInclusionPolicyHonor))
			}
		}
		policy(s.NodeAffinityPolicy, "nodeAffinityPolicy")
		policy(s.NodeTaintsPolicy, "nodeTaintsPolicy")
		c.add(validateLabelKeys(s.MatchLabelKeys, nil, s.LabelSelector, p))
		c.add(metavalidation.ValidateLabelSelector(s.LabelSelector, metavalidation.LabelSelectorValidationOptions{}, p.Child("labelSelector")))
	}
}

func ValidateTolerations(list []corev1.Toleration, at *field.Path) field.ErrorList {
	var f faults
	for i, t := range list {
		p := at.Index(i)
		if t.Key != "" {
			if !plainKey(t.Key) {
				f.add(metavalidation.ValidateLabelName(t.Key, p.Child("key")))
			}
		} else if t.Operator != corev1.TolerationOpExists {
			f.invalid(p.Child("operator"), t.Operator,
				"operator must be Exists when `key` is empty, which means \"match all values and all keys\"")
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			f.invalid(p.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
		}
		switch t.Operator {
		case corev1.TolerationOpEqual, "":
			if msgs := utilvalidation.IsValidLabelValue(t.Value); len(msgs) > 0 {
				f.invalid(p.Child("operator"), t.Value, strings.Join(msgs, ";"))
			}
		case corev1.TolerationOpExists:
			if t.Value != "" {
				f.invalid(p.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'")
			}
		case corev1.TolerationOpLt, corev1.TolerationOpGt: // off by default upstream
			f.list = append(f.list, field.NotSupported(p.Child("operator"), t.Operator, []corev1.TolerationOperator{
				corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpLt, corev1.TolerationOpGt}))
		default:
			among(&f, t.Operator, p.Child("operator"), corev1.TolerationOpEqual, corev1.TolerationOpExists)
		}
		if t.Effect != "" && !slices.Contains(taintEffects, t.Effect) {
			taintEffect(&f, t.Effect, p.Child("effect"))
		}
	}
	return f.list
}

var taintEffects = []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}

func taintEffect(f *faults, e corev1.TaintEffect, at *field.Path) { among(f, e, at, taintEffects...) }
