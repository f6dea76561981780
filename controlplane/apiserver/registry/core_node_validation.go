package registry

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

func validateNode(ctx context.Context, n, old *corev1.Node) field.ErrorList {
	var f faults
	// taints are under spec, but upstream names them under metadata
	f.add(validateTaints(n.Spec.Taints, field.NewPath("metadata", "taints")))
	f.add(validateNodeResources(n))
	f.add(validateDeclaredFeatures(n.Status.DeclaredFeatures, field.NewPath("status", "declaredFeatures")))
	at := field.NewPath("spec", "podCIDRs")
	for i, cidr := range n.Spec.PodCIDRs {
		f.add(cidrValue(cidr, nil, at.Index(i)))
	}
	if len(n.Spec.PodCIDRs) > 1 {
		dual, err := netutils.IsDualStackCIDRStrings(n.Spec.PodCIDRs)
		if err != nil {
			f.list = append(f.list, field.InternalError(at, fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:%v", err)))
		}
		if !dual || len(n.Spec.PodCIDRs) > 2 {
			f.invalid(at, n.Spec.PodCIDRs, "may specify no more than one CIDR for each IP family")
		}
	}
	if old != nil {
		f.add(validateNodeUpdate(ctx, n, old))
	}
	return f.list
}

var declaredFeature = regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*$`)

func validateDeclaredFeatures(names []string, at *field.Path) field.ErrorList {
	var f faults
	const most = utilvalidation.DNS1123SubdomainMaxLength
	for i, name := range names {
		switch {
		case len(name) > most:
			f.invalid(at.Index(i), name, fmt.Sprintf("invalid feature name %q: must be no more than %d characters", name, most))
		case !declaredFeature.MatchString(name):
			f.invalid(at.Index(i), name, fmt.Sprintf("invalid feature name %q: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes", name))
		}
		if i+1 == len(names) {
			break
		}
		if next := names[i+1]; next == name {
			f.duplicate(at.Index(i+1), next)
		} else if next < name {
			f.invalid(at.Index(i+1), next, "list must be sorted alphabetically")
		}
	}
	return f.list
}

func validateNodeResources(n *corev1.Node) field.ErrorList {
	var f faults
	for part, list := range map[string]corev1.ResourceList{"capacity": n.Status.Capacity, "allocatable": n.Status.Allocatable} {
		for _, name := range sortedResources(list) {
			f.add(quantity(name, list[name], field.NewPath("status", part, string(name))))
		}
	}
	return f.list
}

func validateNodeUpdate(_ context.Context, n, old *corev1.Node) field.ErrorList {
	var f faults
	f.add(validateNodeResources(n))
	f.add(validateDeclaredFeatures(n.Status.DeclaredFeatures, field.NewPath("status", "declaredFeatures")))
	seen := map[corev1.NodeAddress]bool{}
	for i, a := range n.Status.Addresses {
		if seen[a] {
			f.duplicate(field.NewPath("status", "addresses").Index(i), a)
		}
		seen[a] = true
	}
	if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(old.Spec.PodCIDRs, n.Spec.PodCIDRs) {
		f.forbidden(field.NewPath("spec", "podCIDRs"), `node updates may not change podCIDR except from "" to valid`)
	}
	if old.Spec.ProviderID != "" && old.Spec.ProviderID != n.Spec.ProviderID {
		f.forbidden(field.NewPath("spec", "providerID"), `node updates may not change providerID except from "" to valid`)
	}
	f.add(validateTaints(n.Spec.Taints, field.NewPath("metadata", "taints")))
	if n.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		f.forbidden(field.NewPath("spec", "externalID"), "may not be updated")
	}
	return f.list
}

func validateTaints(taints []corev1.Taint, at *field.Path) field.ErrorList {
	var f faults
	type key struct {
		key    string
		effect corev1.TaintEffect
	}
	seen := map[key]bool{}
	for i, t := range taints {
		p := at.Index(i)
		f.add(metavalidation.ValidateLabelName(t.Key, p.Child("key")))
		if msgs := utilvalidation.IsValidLabelValue(t.Value); len(msgs) > 0 {
			f.invalid(p.Child("value"), t.Value, strings.Join(msgs, ";"))
		}
		if t.Effect == "" {
			f.required(p.Child("effect"), "")
		} else {
			taintEffect(&f, t.Effect, p.Child("effect"))
		}
		k := key{t.Key, t.Effect}
		if seen[k] {
			err := field.Duplicate(p, t)
			err.Detail = "taints must be unique by key and effect pair"
			f.list = append(f.list, err)
		}
		seen[k] = true
	}
	return f.list
}
