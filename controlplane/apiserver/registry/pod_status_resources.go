package registry

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateClaimStatuses checks what a pod's status says of its claims.
func validateClaimStatuses(s *corev1.PodStatus, spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	var f faults
	seen := map[string]bool{}
	for i, c := range s.ResourceClaimStatuses {
		p := at.Child("resourceClaimStatuses").Index(i)
		if !slices.ContainsFunc(spec.ResourceClaims, func(r corev1.PodResourceClaim) bool { return r.Name == c.Name }) {
			f.invalid(p.Child("name"), c.Name, "must match the name of an entry in `spec.resourceClaims`")
		}
		if seen[c.Name] {
			f.duplicate(p.Child("name"), c.Name)
		}
		seen[c.Name] = true
		if c.ResourceClaimName != nil {
			f.add(invalid(NameIsDNSSubdomain(*c.ResourceClaimName, false), *c.ResourceClaimName, p.Child("resourceClaimName")))
		}
	}
	if e := s.ExtendedResourceClaimStatus; e != nil {
		f.add(validateExtendedClaim(e, spec, at.Child("extendedResourceClaimStatus")))
	}
	return f.list
}

func validateExtendedClaim(s *corev1.PodExtendedResourceClaimStatus, spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	var f faults
	if len(s.RequestMappings) == 0 {
		f.required(at.Child("requestMappings"), "at least one request mapping is required")
	}
	seen := map[corev1.ContainerExtendedResourceRequest]bool{}
	for i, m := range s.RequestMappings {
		p := at.Child("requestMappings").Index(i)
		if c := containerNamed(m.ContainerName, spec.Containers, spec.InitContainers); c == nil {
			f.invalid(p.Child("containerName"), m.ContainerName, "must match the name of an entry in spec.initContainers.name or spec.containers.name")
		} else if _, ok := c.Resources.Requests[corev1.ResourceName(m.ResourceName)]; !ok {
			f.invalid(p.Child("resourceName"), m.ResourceName, "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests")
		}
		f.add(dnsLabel(m.RequestName, at.Child("requestName")))
		if seen[m] {
			f.duplicate(p.Child("containerName"), m.ContainerName)
			f.duplicate(p.Child("resourceName"), m.ResourceName)
			f.duplicate(p.Child("requestName"), m.RequestName)
		}
		seen[m] = true
	}
	if s.ResourceClaimName == "" {
		f.required(at.Child("resourceClaimName"), "")
	} else {
		f.add(invalid(NameIsDNSSubdomain(s.ResourceClaimName, false), s.ResourceClaimName, at.Child("resourceClaimName")))
	}
	return f.list
}

func containerNamed(name string, lists ...[]corev1.Container) *corev1.Container {
	for _, list := range lists {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// validateContainerUser checks who a container is said to run as.
func validateContainerUser(u *corev1.ContainerUser, os *corev1.PodOS, at *field.Path) field.ErrorList {
	if u == nil || u.Linux == nil {
		return nil
	}
	if os != nil && os.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(at, "cannot be set for a windows pod")}
	}
	errs := invalid(utilvalidation.IsValidUserID(u.Linux.UID), u.Linux.UID, at.Child("uid"))
	errs = append(errs, invalid(utilvalidation.IsValidGroupID(u.Linux.GID), u.Linux.GID, at.Child("gid"))...)
	for i, gid := range u.Linux.SupplementalGroups {
		errs = append(errs, invalid(utilvalidation.IsValidGroupID(gid), gid, at.Child("supplementalGroups").Index(i))...)
	}
	return errs
}

// validateAllocatedStatus checks the health of the resources a container has.
func validateAllocatedStatus(s *corev1.ContainerStatus, containers []corev1.Container, at *field.Path) field.ErrorList {
	var f faults
	c := containerNamed(s.Name, containers)
	for i, r := range s.AllocatedResourcesStatus {
		if why := notAsked(c, r.Name); why != "" {
			f.invalid(at.Index(i).Child("name"), r.Name, why)
		}
		seen := map[corev1.ResourceID]bool{}
		for j, h := range r.Resources {
			p := at.Index(i).Child("resources").Index(j)
			among(&f, h.Health, p.Child("health"), corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy, corev1.ResourceHealthStatusUnknown)
			if m := h.Message; m != nil && *m == "" {
				f.required(p.Child("message"), "must be non-empty if specified")
			} else if m != nil && len(*m) > corev1.ResourceHealthMessageMaxLength {
				f.list = append(f.list, field.TooLong(p.Child("message"), *m, corev1.ResourceHealthMessageMaxLength))
			}
			if seen[h.ResourceID] {
				f.duplicate(p.Child("resourceID"), h.ResourceID)
			}
			seen[h.ResourceID] = true
		}
	}
	return f.list
}

// notAsked says why a container, which may be unknown, cannot have a resource.
func notAsked(c *corev1.Container, name corev1.ResourceName) string {
	if c == nil {
		return ""
	}
	if !strings.HasPrefix(string(name), "claim:") {
		if _, ok := c.Resources.Requests[name]; ok {
			return ""
		}
		return "must match one of the container's resource requests"
	}
	for _, claim := range c.Resources.Claims {
		want := "claim:" + claim.Name
		if claim.Request != "" {
			want += "/" + claim.Request
		}
		if want == string(name) {
			return ""
		}
	}
	return "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty"
}
