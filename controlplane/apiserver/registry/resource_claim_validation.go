package registry

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	devicecel "k8s.io/dynamic-resource-allocation/cel"
)

func validateDeviceClass(c, old *resourcev1.DeviceClass) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	kept := old != nil && same(c.Spec.Selectors, old.Spec.Selectors)
	f.add(validateDeviceSelectors(c.Spec.Selectors, kept, at.Child("selectors")))
	most := resourcev1.OpaqueParametersMaxLength
	if old != nil && same(c.Spec.Config, old.Spec.Config) {
		most = int(^uint(0) >> 1) // the limit is younger than some objects
	}
	f.add(eachOf(c.Spec.Config, resourcev1.DeviceConfigMaxSize, at.Child("config"), func(d *resourcev1.DeviceClassConfiguration, at *field.Path) field.ErrorList {
		return validateDeviceConfig(&d.DeviceConfiguration, most, at)
	}))
	if n := c.Spec.ExtendedResourceName; n != nil && !IsExtended(corev1.ResourceName(*n)) {
		f.invalid(at.Child("extendedResourceName"), *n, "must be a valid extended resource name")
	}
	return f.list
}

// requestNames are the requests of a claim and their subrequests, as
// "request" and "request/subrequest".
func requestNames(c *resourcev1.DeviceClaim) map[string]bool {
	names := map[string]bool{}
	for _, r := range c.Requests {
		names[r.Name] = true
		for _, sub := range r.FirstAvailable {
			names[r.Name+"/"+sub.Name] = true
		}
	}
	return names
}

func validateRequestRefs(refs []string, names map[string]bool, at *field.Path) field.ErrorList {
	return setOf(refs, resourcev1.DeviceRequestsMaxSize, at, itself, func(ref *string, at *field.Path) field.ErrorList {
		return validateRequestRef(*ref, names, at)
	})
}

func validateRequestRef(ref string, names map[string]bool, at *field.Path) field.ErrorList {
	var f faults
	parts := strings.Split(ref, "/")
	if len(parts) <= 2 {
		for _, part := range parts {
			f.add(dnsLabel(part, at))
		}
	}
	if !names[ref] {
		f.invalid(at, ref, "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'")
	}
	return f.list
}

func validateDeviceClaim(s *resourcev1.ResourceClaimSpec, at *field.Path) field.ErrorList {
	var f faults
	d := &s.Devices
	at = at.Child("devices")
	names := requestNames(d)
	f.add(setOf(d.Requests, resourcev1.DeviceRequestsMaxSize, at.Child("requests"),
		func(r *resourcev1.DeviceRequest) string { return r.Name }, validateDeviceRequest))
	f.add(eachOf(d.Constraints, resourcev1.DeviceConstraintsMaxSize, at.Child("constraints"), func(c *resourcev1.DeviceConstraint, at *field.Path) field.ErrorList {
		errs := validateRequestRefs(c.Requests, names, at.Child("requests"))
		switch {
		case c.MatchAttribute != nil:
			return append(errs, deviceFullName(string(*c.MatchAttribute), at.Child("matchAttribute"))...)
		case c.DistinctAttribute != nil:
			return append(errs, deviceFullName(string(*c.DistinctAttribute), at.Child("distinctAttribute"))...)
		}
		return append(errs, field.Required(at, `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`))
	}))
	f.add(eachOf(d.Config, resourcev1.DeviceConfigMaxSize, at.Child("config"), func(c *resourcev1.DeviceClaimConfiguration, at *field.Path) field.ErrorList {
		errs := validateRequestRefs(c.Requests, names, at.Child("requests"))
		return append(errs, validateDeviceConfig(&c.DeviceConfiguration, resourcev1.OpaqueParametersMaxLength, at)...)
	}))
	return f.list
}

func validateDeviceRequest(r *resourcev1.DeviceRequest, at *field.Path) field.ErrorList {
	var f faults
	f.add(dnsLabel(r.Name, at.Child("name")))
	switch either, exactly := len(r.FirstAvailable) > 0, r.Exactly != nil; {
	case !either && !exactly:
		f.required(at, "exactly one of `exactly` or `firstAvailable` is required")
	case either && exactly:
		f.invalid(at, nil, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set")
	case either:
		f.add(setOf(r.FirstAvailable, resourcev1.FirstAvailableDeviceRequestMaxSize, at.Child("firstAvailable"),
			func(s *resourcev1.DeviceSubRequest) string { return s.Name },
			func(s *resourcev1.DeviceSubRequest, at *field.Path) field.ErrorList {
				errs := dnsLabel(s.Name, at.Child("name"))
				return append(errs, validateDeviceAsk(&deviceAsk{s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Tolerations}, at)...)
			}))
	case exactly:
		e := r.Exactly
		f.add(validateDeviceAsk(&deviceAsk{e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Tolerations}, at.Child("exactly")))
	}
	return f.list
}

// A deviceAsk is what requests and subrequests have in common.
type deviceAsk struct {
	class       string
	selectors   []resourcev1.DeviceSelector
	mode        resourcev1.DeviceAllocationMode
	count       int64
	tolerations []resourcev1.DeviceToleration
}

func validateDeviceAsk(a *deviceAsk, at *field.Path) field.ErrorList {
	var f faults
	if a.class == "" {
		f.required(at.Child("deviceClassName"), "")
	} else {
		f.add(dnsSubdomain(a.class, at.Child("deviceClassName")))
	}
	f.add(validateDeviceSelectors(a.selectors, false, at.Child("selectors")))
	count := at.Child("count")
	switch a.mode {
	case resourcev1.DeviceAllocationModeAll:
		if a.count != 0 {
			f.invalid(count, a.count, fmt.Sprintf("must not be specified when allocationMode is '%s'", a.mode))
		}
	case resourcev1.DeviceAllocationModeExactCount:
		if a.count <= 0 {
			f.invalid(count, a.count, "must be greater than zero")
		}
	default:
		among(&f, a.mode, at.Child("allocationMode"), resourcev1.DeviceAllocationModeAll, resourcev1.DeviceAllocationModeExactCount)
	}
	f.add(eachOf(a.tolerations, -1, at.Child("tolerations"), validateDeviceToleration))
	return f.list
}

// validateDeviceSelectors compiles the expressions; stored ones may use all that
// any version knows.
func validateDeviceSelectors(list []resourcev1.DeviceSelector, stored bool, at *field.Path) field.ErrorList {
	return eachOf(list, resourcev1.DeviceSelectorsMaxSize, at, func(s *resourcev1.DeviceSelector, at *field.Path) field.ErrorList {
		at = at.Child("cel")
		if s.CEL == nil {
			return field.ErrorList{field.Required(at, "")}
		}
		at = at.Child("expression")
		if len(s.CEL.Expression) > resourcev1.CELSelectorExpressionMaxLength {
			return field.ErrorList{field.TooLong(at, "", resourcev1.CELSelectorExpressionMaxLength)}
		}
		env := environment.NewExpressions
		if stored {
			env = environment.StoredExpressions
		}
		result := devicecel.GetCompiler(devicecel.Features{EnableConsumableCapacity: true}).
			CompileCELExpression(s.CEL.Expression, devicecel.Options{EnvType: &env})
		if result.Error != nil {
			return field.ErrorList{celFault(result.Error, s.CEL.Expression, at)}
		}
		if result.MaxCost > resourcev1.CELSelectorExpressionMaxCost {
			return field.ErrorList{field.Forbidden(at, "too complex, exceeds cost limit")}
		}
		return nil
	})
}

func celFault(err error, expression string, at *field.Path) *field.Error {
	if e, ok := errors.AsType[*apiservercel.Error](err); ok {
		switch e.Type {
		case apiservercel.ErrorTypeRequired:
			return field.Required(at, e.Detail)
		case apiservercel.ErrorTypeInvalid:
			return field.Invalid(at, expression, e.Detail)
		}
	}
	return field.InternalError(at, err)
}

func validateDeviceConfig(c *resourcev1.DeviceConfiguration, most int, at *field.Path) field.ErrorList {
	at = at.Child("opaque")
	if c.Opaque == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	errs := csiDriverName(c.Opaque.Driver, at.Child("driver"))
	return append(errs, rawObject(c.Opaque.Parameters, most, at.Child("parameters"))...)
}
