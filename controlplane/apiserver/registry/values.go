package registry

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// invalid turns the messages of a rule into faults of a value.
func invalid[V any](msgs []string, value V, at *field.Path) (errs field.ErrorList) {
	for _, msg := range msgs {
		errs = append(errs, field.Invalid(at, value, msg))
	}
	return errs
}

func qualifiedName(value string, at *field.Path) field.ErrorList {
	if plainKey(value) {
		return nil
	}
	return invalid(utilvalidation.IsQualifiedName(value), value, at)
}

func dnsLabel(value string, at *field.Path) field.ErrorList {
	if plainLabel(value) {
		return nil
	}
	return invalid(utilvalidation.IsDNS1123Label(value), value, at)
}

func dnsSubdomain(value string, at *field.Path) field.ErrorList {
	if plainSubdomain(value) {
		return nil
	}
	return invalid(utilvalidation.IsDNS1123Subdomain(value), value, at)
}

// nonnegative is what most counts must be.
func nonnegative[N ~int | ~int32 | ~int64](value N, at *field.Path) field.ErrorList {
	return validation.ValidateNonnegativeField(int64(value), at)
}

func nonnegativeOpt[N ~int | ~int32 | ~int64](value *N, at *field.Path) field.ErrorList {
	if value == nil {
		return nil
	}
	return nonnegative(*value, at)
}

func positive[N ~int32 | ~int64](value N, at *field.Path) field.ErrorList {
	if value > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(at, int64(value), "must be greater than zero")}
}

// unchanged demands that a field keeps its value.
func unchanged(now, before any, at *field.Path) field.ErrorList {
	return validation.ValidateImmutableField(now, before, at)
}

// oneOf demands one of the supported values, which are named sorted.
func oneOf[S ~string](value S, at *field.Path, supported ...S) field.ErrorList {
	if slices.Contains(supported, value) {
		return nil
	}
	slices.Sort(supported)
	return field.ErrorList{field.NotSupported(at, value, supported)}
}

// oneOfNeeded is oneOf for a field that must be set.
func oneOfNeeded[S ~string](value S, at *field.Path, supported ...S) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return oneOf(value, at, supported...)
}

func portNumber(port int32, at *field.Path) field.ErrorList {
	return invalid(utilvalidation.IsValidPortNum(int(port)), port, at)
}

func portNumberOrName(port intstr.IntOrString, at *field.Path) field.ErrorList {
	switch port.Type {
	case intstr.Int:
		return invalid(utilvalidation.IsValidPortNum(port.IntValue()), port.IntValue(), at)
	case intstr.String:
		return invalid(utilvalidation.IsValidPortName(port.StrVal), port.StrVal, at)
	}
	return field.ErrorList{field.InternalError(at, fmt.Errorf("unknown type: %v", port.Type))}
}

// intOrPercent checks a count that may be a percentage.
func intOrPercent(value intstr.IntOrString, at *field.Path) field.ErrorList {
	switch value.Type {
	case intstr.String:
		return invalid(utilvalidation.IsValidPercent(value.StrVal), value, at)
	case intstr.Int:
		return nonnegative(value.IntValue(), at)
	}
	return field.ErrorList{field.Invalid(at, value, "must be an integer or percentage (e.g '5%%')")}
}

// percent is the value of a percentage, ok false when it is not one.
func percent(value intstr.IntOrString) (n int, ok bool) {
	if value.Type != intstr.String || len(utilvalidation.IsValidPercent(value.StrVal)) != 0 {
		return 0, false
	}
	_, err := fmt.Sscanf(value.StrVal, "%d%%", &n)
	return n, err == nil
}

func atMostHundredPercent(value intstr.IntOrString, at *field.Path) field.ErrorList {
	if n, ok := percent(value); ok && n > 100 {
		return field.ErrorList{field.Invalid(at, value, "must not be greater than 100%")}
	}
	return nil
}

// countOf is an int or percent as the number validation compares with.
func countOf(value *intstr.IntOrString) int {
	if value == nil {
		return 0
	}
	if n, ok := percent(*value); ok {
		return n
	}
	return value.IntValue()
}

// roundUp makes the quantities of a list multiples of a thousandth, as they
// are kept.
func roundUp(list corev1.ResourceList) {
	for name, q := range list {
		if q.RoundUp(resource.Milli) {
			continue
		}
		list[name] = q
	}
}

func sortedResources(list corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(list))
	for name := range list {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b corev1.ResourceName) int { return strings.Compare(string(a), string(b)) })
	return names
}
