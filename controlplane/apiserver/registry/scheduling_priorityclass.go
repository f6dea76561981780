package registry

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// highestUserPriority is the most a class may have that is not the system's.
	highestUserPriority = int32(1000000000)
	systemPrefix        = "system-"
)

// systemPriorities are the only classes with the system's prefix.
var systemPriorities = map[string]schedulingv1.PriorityClass{
	"system-node-critical": {Value: 2*highestUserPriority + 1000,
		Description: "Used for system critical pods that must not be moved from their current node."},
	"system-cluster-critical": {Value: 2 * highestUserPriority,
		Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."},
}

var priorityClasses = &Kind[*schedulingv1.PriorityClass]{
	GroupVersionKind: schedulingv1.SchemeGroupVersion.WithKind("PriorityClass"),
	Plural:           "priorityclasses",
	Short:            []string{"pc"},
	Cluster:          true,

	Default: func(p *schedulingv1.PriorityClass) {
		fillPtr(&p.PreemptionPolicy, corev1.PreemptLowerPriority)
	},
	Prepare: func(_ context.Context, p, old *schedulingv1.PriorityClass) {
		p.Generation = 1
		if old != nil {
			p.Generation = old.Generation
		}
	},
	Validate: validatePriorityClass,
	Columns: []Column[*schedulingv1.PriorityClass]{
		nameColumn[*schedulingv1.PriorityClass](),
		column("Value", "integer", schedulingv1.PriorityClass{}.SwaggerDoc()["value"], 0,
			func(p *schedulingv1.PriorityClass) any { return int64(p.Value) }),
		column("Global-Default", "boolean", schedulingv1.PriorityClass{}.SwaggerDoc()["globalDefault"], 0,
			func(p *schedulingv1.PriorityClass) any { return p.GlobalDefault }),
		ageColumn[*schedulingv1.PriorityClass](),
		column("PreemptionPolicy", "string", schedulingv1.PriorityClass{}.SwaggerDoc()["preemptionPolicy"], 0,
			func(p *schedulingv1.PriorityClass) any { return string(deref(p.PreemptionPolicy, "")) }),
	},
}

func validatePriorityClass(_ context.Context, p, old *schedulingv1.PriorityClass) (errs field.ErrorList) {
	const fixed = "may not be changed in an update."
	if old != nil {
		if p.Value != old.Value {
			errs = append(errs, field.Forbidden(field.NewPath("value"), fixed))
		}
		return append(errs, unchanged(p.PreemptionPolicy, old.PreemptionPolicy, field.NewPath("preemptionPolicy"))...)
	}
	switch {
	case strings.HasPrefix(p.Name, systemPrefix):
		if err := knownSystemPriority(p); err != nil {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"),
				fmt.Sprintf("priority class names with '%s' prefix are reserved for system use only. error: %v", systemPrefix, err)))
		}
	case p.Value > highestUserPriority:
		errs = append(errs, field.Forbidden(field.NewPath("value"),
			fmt.Sprintf("maximum allowed value of a user defined priority is %v", highestUserPriority)))
	}
	if p.PreemptionPolicy != nil {
		errs = append(errs, validatePreemptionPolicy(p.PreemptionPolicy, field.NewPath("preemptionPolicy"))...)
	}
	return errs
}

func validatePreemptionPolicy(p *corev1.PreemptionPolicy, at *field.Path) field.ErrorList {
	switch *p {
	case corev1.PreemptLowerPriority, corev1.PreemptNever:
		return nil
	case "":
		return field.ErrorList{field.Required(at, "")}
	}
	return field.ErrorList{field.NotSupported(at, *p, []corev1.PreemptionPolicy{corev1.PreemptLowerPriority, corev1.PreemptNever})}
}

func knownSystemPriority(p *schedulingv1.PriorityClass) error {
	known, ok := systemPriorities[p.Name]
	switch {
	case !ok:
		return fmt.Errorf("%v is not a known system priority class", p.Name)
	case p.Value != known.Value:
		return fmt.Errorf("value of %v PriorityClass must be %v", p.Name, known.Value)
	case p.GlobalDefault:
		return fmt.Errorf("globalDefault of %v PriorityClass must be %v", p.Name, false)
	}
	return nil
}
