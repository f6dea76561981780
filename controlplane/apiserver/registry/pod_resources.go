package registry

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"
)

// countedResources are whole numbers of objects.
var countedResources = []corev1.ResourceName{
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
}

// quotaResources are what quotas may name without a domain.
var quotaResources = append([]corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsStorage, corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
}, countedResources...)

func isHugePagesQuota(name corev1.ResourceName) bool {
	return isHugePages(name) || strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

func isStandardResource(name corev1.ResourceName) bool {
	return name == corev1.ResourceStorage || slices.Contains(quotaResources, name) || isHugePagesQuota(name)
}

// IsExtended reports whether the name is of a resource that others than
// Kubernetes account for.
func IsExtended(name corev1.ResourceName) bool {
	if isNative(name) || strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	return len(utilvalidation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

// resourceName checks the name of any resource.
func resourceName(name corev1.ResourceName, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !plainKey(string(name)) {
		errs = invalid(utilvalidation.IsQualifiedName(string(name)), name, at)
	}
	if len(errs) == 0 && !strings.Contains(string(name), "/") && !isStandardResource(name) {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource type or fully qualified"))
	}
	return errs
}

func containerResourceName(name corev1.ResourceName, at *field.Path) field.ErrorList {
	errs := resourceName(name, at)
	switch {
	case !strings.Contains(string(name), "/"):
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage && !isHugePages(name) {
			errs = append(errs, field.Invalid(at, name, "must be a standard resource for containers"))
		}
	case !isNative(name) && !IsExtended(name):
		errs = append(errs, field.Invalid(at, name, "doesn't follow extended resource name standard"))
	}
	return errs
}

func podResourceName(name corev1.ResourceName, at *field.Path) field.ErrorList {
	errs := resourceName(name, at)
	if len(errs) == 0 && !resourcehelper.IsSupportedPodLevelResource(name) {
		errs = append(errs, field.NotSupported(at, name, sets.List(resourcehelper.SupportedPodLevelResources())))
	}
	return errs
}

// quantity checks an amount of a resource.
func quantity(name corev1.ResourceName, q resource.Quantity, at *field.Path) (errs field.ErrorList) {
	if q.Sign() < 0 {
		errs = append(errs, field.Invalid(at, q.String(), "must be greater than or equal to 0"))
	}
	if (slices.Contains(countedResources, name) || IsExtended(name)) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(at, q, "must be an integer"))
	}
	return errs
}

// hugePages checks that an amount is made of whole pages.
func hugePages(name corev1.ResourceName, q resource.Quantity, at *field.Path) (errs field.ErrorList) {
	if !isHugePages(name) {
		return nil
	}
	page, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	if err != nil || page.Sign() <= 0 || page.MilliValue()%1000 != 0 || q.Sign() < 0 || q.Value()%page.Value() != 0 {
		errs = append(errs, field.Invalid(at, q.String(), fmt.Sprintf("%s is not positive integer multiple of %s", q.String(), name)))
	}
	return errs
}

// validateResources checks requests and limits, with the name rule of the
// place, and the resource claims among those of the pod.
func validateResources(r *corev1.ResourceRequirements, nameRule func(corev1.ResourceName, *field.Path) field.ErrorList,
	claims map[string]bool, at *field.Path) field.ErrorList {
	var f faults
	limits, requests := at.Child("limits"), at.Child("requests")
	huge, compute := false, false
	note := func(name corev1.ResourceName) {
		huge = huge || isHugePages(name)
		compute = compute || name == corev1.ResourceCPU || name == corev1.ResourceMemory
	}
	for _, name := range sortedResources(r.Limits) {
		q, p := r.Limits[name], limits.Key(string(name))
		f.add(nameRule(name, p))
		f.add(quantity(name, q, p))
		f.add(hugePages(name, q, p))
		note(name)
	}
	for _, name := range sortedResources(r.Requests) {
		q, p := r.Requests[name], requests.Key(string(name))
		f.add(nameRule(name, p))
		f.add(quantity(name, q, p))
		switch limit, limited := r.Limits[name]; {
		case limited && q.Cmp(limit) != 0 && !overcommits(name):
			f.invalid(requests, q.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String()))
		case limited && q.Cmp(limit) > 0:
			f.invalid(requests, q.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String()))
		case !limited && !overcommits(name):
			f.required(limits, "Limit must be set for non overcommitable resources")
		}
		f.add(hugePages(name, q, p))
		note(name)
	}
	if huge && !compute {
		f.forbidden(at, "HugePages require cpu or memory")
	}
	f.add(validateClaimNames(r.Claims, claims, at.Child("claims")))
	return f.list
}

func validateClaimNames(list []corev1.ResourceClaim, known map[string]bool, at *field.Path) field.ErrorList {
	var f faults
	names := map[string]bool{}
	for i, claim := range list {
		p := at.Index(i)
		if claim.Name == "" {
			f.required(p, "")
			continue
		}
		key := claim.Name
		if !names[key] {
			if claim.Request != "" {
				f.add(dnsLabel(claim.Request, p.Child("request")))
				key += "/" + claim.Request
			}
			switch {
			case names[key]:
				f.duplicate(p, key)
			case claim.Request == "":
				for other := range names {
					if strings.HasPrefix(other, claim.Name+"/") {
						f.duplicate(p, claim.Name)
					}
				}
			}
			names[key] = true
		} else {
			f.duplicate(p, key)
		}
		if !known[claim.Name] {
			err := field.NotFound(p, claim.Name)
			err.Detail = "must be one of the names in pod.spec.resourceClaims"
			if len(known) == 0 {
				err.Detail += " which is empty"
			} else {
				err.Detail += ": " + strings.Join(sortedKeys(known), ", ")
			}
			f.list = append(f.list, err)
		}
	}
	return f.list
}

// checkPodResources checks resources given for the pod as a whole.
func (c *podCheck) checkPodResources(at *field.Path) {
	r := c.spec.Resources
	if r == nil {
		return
	}
	if c.spec.OS != nil && c.spec.OS.Name == corev1.Windows {
		c.forbidden(at, "may not be set for a windows pod")
		return
	}
	if r.Claims != nil {
		c.forbidden(at.Child("claims"), "claims may not be set for Resources at pod-level")
	}
	c.add(validateResources(r, podResourceName, c.claims, at))
	whole := &corev1.Pod{Spec: *c.spec}
	sum := resourcehelper.AggregateContainerRequests(whole, resourcehelper.PodResourcesOptions{})
	for _, name := range sortedResources(sum) {
		of, ok := r.Requests[name]
		if q := sum[name]; ok && q.Cmp(of) > 0 {
			c.invalid(at.Child("requests").Key(string(name)), of.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", q.String()))
		}
	}
	sum = resourcehelper.AggregateContainerLimits(whole, resourcehelper.PodResourcesOptions{})
	for _, name := range sortedResources(sum) {
		of, ok := r.Limits[name]
		if q := sum[name]; ok && isHugePages(name) && q.Cmp(of) > 0 {
			c.invalid(at.Child("limits").Key(string(name)), of.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container limits of %s", q.String()))
		}
	}
	for i := range c.spec.Containers {
		list := c.spec.Containers[i].Resources.Limits
		for _, name := range sortedResources(list) {
			of, ok := r.Limits[name]
			if q := list[name]; ok && q.Cmp(of) > 0 {
				c.invalid(at.Child("containers").Index(i).Key(string(name)).Child("limits"), q.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", of.String()))
			}
		}
	}
}
