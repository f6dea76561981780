package registry

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkPodSecurity checks the security context of the pod.
func (c *podCheck) checkPodSecurity(at *field.Path) {
	sc := c.spec.SecurityContext
	if sc == nil {
		return
	}
	if sc.FSGroup != nil {
		c.add(invalid(utilvalidation.IsValidGroupID(*sc.FSGroup), *sc.FSGroup, at.Child("fsGroup")))
	}
	c.checkIDs(sc.RunAsUser, sc.RunAsGroup, at)
	for i, id := range sc.SupplementalGroups {
		c.add(invalid(utilvalidation.IsValidGroupID(id), id, at.Child("supplementalGroups").Index(i)))
	}
	if deref(c.spec.ShareProcessNamespace, false) && c.spec.HostPID {
		c.invalid(at.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled")
	}
	if len(sc.Sysctls) > 0 {
		c.checkSysctls(sc.Sysctls, at.Child("sysctls"))
	}
	if p := sc.FSGroupChangePolicy; p != nil {
		c.add(oneOf(*p, at.Child("fsGroupChangePolicy"), corev1.FSGroupChangeOnRootMismatch, corev1.FSGroupChangeAlways))
	}
	c.checkSeccomp(sc.SeccompProfile, at)
	c.checkWindowsOptions(sc.WindowsOptions, at)
	c.checkAppArmor(sc.AppArmorProfile, at)
	if p := sc.SupplementalGroupsPolicy; p != nil {
		c.add(oneOf(*p, at.Child("supplementalGroupsPolicy"), corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict))
	}
	if p := sc.SELinuxChangePolicy; p != nil {
		c.add(oneOf(*p, at.Child("seLinuxChangePolicy"), corev1.SELinuxChangePolicyRecursive)) // mount option: off by default upstream
	}
}

// checkSecurity checks the security context of a container.
func (c *podCheck) checkSecurity(sc *corev1.SecurityContext, at *field.Path) {
	if sc == nil {
		return
	}
	c.checkIDs(sc.RunAsUser, sc.RunAsGroup, at)
	if p := sc.ProcMount; p != nil {
		among(&c.faults, *p, at.Child("procMount"), corev1.DefaultProcMount, corev1.UnmaskedProcMount)
		if c.hostUsers() && *p == corev1.UnmaskedProcMount {
			c.invalid(at.Child("procMount"), p, "`hostUsers` must be false to use `Unmasked`")
		}
	}
	c.checkSeccomp(sc.SeccompProfile, at)
	if !deref(sc.AllowPrivilegeEscalation, true) {
		if deref(sc.Privileged, false) {
			c.invalid(at, sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
		}
		if sc.Capabilities != nil {
			for _, capability := range sc.Capabilities.Add {
				if capability == "CAP_SYS_ADMIN" {
					c.invalid(at, sc, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN")
				}
			}
		}
	}
	c.checkWindowsOptions(sc.WindowsOptions, at)
	c.checkAppArmor(sc.AppArmorProfile, at)
}

func (c *podCheck) checkIDs(user, group *int64, at *field.Path) {
	if user != nil {
		c.add(invalid(utilvalidation.IsValidUserID(*user), *user, at.Child("runAsUser")))
	}
	if group != nil {
		c.add(invalid(utilvalidation.IsValidGroupID(*group), *group, at.Child("runAsGroup")))
	}
}

func (c *podCheck) checkSeccomp(p *corev1.SeccompProfile, at *field.Path) {
	if p == nil {
		return
	}
	at = at.Child("seccompProfile")
	if p.Type == "" {
		c.required(at.Child("type"), "type is required when seccompProfile is set")
	} else {
		among(&c.faults, p.Type, at.Child("type"),
			corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined)
	}
	switch local := p.Type == corev1.SeccompProfileTypeLocalhost; {
	case local && p.LocalhostProfile == nil:
		c.required(at.Child("localhostProfile"), "must be set when seccomp type is Localhost")
	case local:
		c.add(descendingPath(*p.LocalhostProfile, at.Child("localhostProfile")))
	case p.LocalhostProfile != nil:
		c.invalid(at.Child("localhostProfile"), p, "can only be set when seccomp type is Localhost")
	}
}

func (c *podCheck) checkAppArmor(p *corev1.AppArmorProfile, at *field.Path) {
	if p == nil {
		return
	}
	at = at.Child("appArmorProfile")
	name := at.Child("localhostProfile")
	switch p.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		switch {
		case deref(p.LocalhostProfile, "") == "":
			c.required(name, "must be set when AppArmor type is Localhost")
		case strings.TrimSpace(*p.LocalhostProfile) == "":
			c.required(name, "must be set when AppArmor type is Localhost")
		case strings.TrimSpace(*p.LocalhostProfile) != *p.LocalhostProfile:
			c.invalid(name, *p.LocalhostProfile, "must not be padded with whitespace")
		case len(*p.LocalhostProfile) > 4095:
			c.list = append(c.list, field.TooLong(name, "", 4095))
		}
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if p.LocalhostProfile != nil {
			c.invalid(name, p.LocalhostProfile, "can only be set when AppArmor type is Localhost")
		}
	case "":
		c.required(at.Child("type"), "type is required when appArmorProfile is set")
	default:
		among(&c.faults, p.Type, at.Child("type"),
			corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined)
	}
}

const (
	sysctlMostLength = 253
	sysctlSegment    = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
	sysctlFormat     = "^(" + sysctlSegment + "[\\./])*" + sysctlSegment + "$"
)

var sysctlName = regexp.MustCompile(sysctlFormat)

func (c *podCheck) checkSysctls(list []corev1.Sysctl, at *field.Path) {
	seen := map[string]bool{}
	for i, s := range list {
		p := at.Index(i).Child("name")
		switch {
		case s.Name == "":
			c.required(p, "")
		case len(s.Name) > sysctlMostLength || !sysctlName.MatchString(s.Name):
			c.invalid(p, s.Name, fmt.Sprintf("must have at most %d characters and match regex %s", sysctlMostLength, sysctlFormat))
		case seen[s.Name]:
			c.duplicate(p, s.Name)
		}
		seen[s.Name] = true
		switch dotted := strings.ReplaceAll(s.Name, "/", "."); {
		case c.spec.HostNetwork && strings.HasPrefix(dotted, "net."):
			c.invalid(p, s.Name, "may not be specified when 'hostNetwork' is true")
		case c.spec.HostIPC && isIPCSysctl(dotted):
			c.invalid(p, s.Name, "may not be specified when 'hostIPC' is true")
		}
	}
}

func isIPCSysctl(name string) bool {
	return name == "kernel.sem" || strings.HasPrefix(name, "kernel.shm") ||
		strings.HasPrefix(name, "kernel.msg") || strings.HasPrefix(name, "fs.mqueue.")
}

// validateProfilesMatch compares the old annotations for seccomp and AppArmor
// with the fields.
func validateProfilesMatch(annotations map[string]string, s *corev1.PodSpec, at *field.Path) field.ErrorList {
	var f faults
	seccomp := func(key string, p *corev1.SeccompProfile, of func() *field.Path) {
		value, ok := annotations[key]
		if !ok || p == nil {
			return
		}
		at := of().Child("securityContext", "seccompProfile")
		local, isLocal := strings.CutPrefix(value, corev1.SeccompLocalhostProfileNamePrefix)
		switch p.Type {
		case corev1.SeccompProfileTypeUnconfined:
			ok = value == corev1.SeccompProfileNameUnconfined
		case corev1.SeccompProfileTypeRuntimeDefault:
			ok = value == corev1.SeccompProfileRuntimeDefault || value == corev1.DeprecatedSeccompProfileDockerDefault
		case corev1.SeccompProfileTypeLocalhost:
			if isLocal && local != deref(p.LocalhostProfile, "") {
				f.forbidden(at.Child("localhostProfile"), "seccomp profile in annotation and field must match")
			}
			ok = isLocal
		}
		if !ok {
			f.forbidden(at.Child("type"), "seccomp type in annotation and field must match")
		}
	}
	var podArmor *corev1.AppArmorProfile
	if s.SecurityContext != nil {
		podArmor = s.SecurityContext.AppArmorProfile
		seccomp(corev1.SeccompPodAnnotationKey, s.SecurityContext.SeccompProfile, func() *field.Path { return at })
	}
	eachContainer(s, at, func(ctr *corev1.Container, at place) {
		armor := podArmor
		if sc := ctr.SecurityContext; sc != nil {
			seccomp(corev1.SeccompContainerAnnotationKeyPrefix+ctr.Name, sc.SeccompProfile, at.path)
			if sc.AppArmorProfile != nil {
				armor = sc.AppArmorProfile
			}
		}
		value, ok := annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+ctr.Name]
		if !ok || armor == nil || (s.OS != nil && s.OS.Name == corev1.Windows) {
			return
		}
		profile := appArmorProfile(value)
		p := at.path().Child("securityContext", "appArmorProfile")
		switch {
		case profile == nil || profile.Type != armor.Type:
			f.forbidden(p.Child("type"), "apparmor type in annotation and field must match")
		case deref(profile.LocalhostProfile, "") != deref(armor.LocalhostProfile, ""):
			f.forbidden(p.Child("localhostProfile"), "apparmor profile in annotation and field must match")
		}
	})
	return f.list
}
