package registry

import (
	"context"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// podCheck goes through a pod spec.
type podCheck struct {
	faults
	spec *corev1.PodSpec
	meta *metav1.ObjectMeta // nil for a template
	at   *field.Path

	volumes map[string]*corev1.VolumeSource // the valid ones
	claims  map[string]bool                 // resource claims by name
}

func (c *podCheck) isPod() bool { return c.meta != nil }

func (c *podCheck) hostUsers() bool { return deref(c.spec.HostUsers, true) }

func validatePod(_ context.Context, p, old *corev1.Pod) field.ErrorList {
	if old != nil {
		return validatePodUpdate(p, old)
	}
	var f faults
	f.add(validatePodContent(p))
	spec := field.NewPath("spec")
	if len(p.Spec.EphemeralContainers) > 0 {
		f.forbidden(spec.Child("ephemeralContainers"), "cannot be set on create")
	}
	if p.Spec.NodeName != "" && len(p.Spec.SchedulingGates) > 0 {
		f.forbidden(spec.Child("nodeName"), "cannot be set until all schedulingGates have been cleared")
	}
	f.add(validateProfilesMatch(p.Annotations, &p.Spec, spec))
	return f.list
}

// validatePodContent is what creation and update have in common.
func validatePodContent(p *corev1.Pod) field.ErrorList {
	var f faults
	spec := field.NewPath("spec")
	f.add(validatePodAnnotations(p.Annotations, &p.Spec, field.NewPath("metadata", "annotations")))
	f.add(validatePodSpec(&p.Spec, &p.ObjectMeta, spec))
	if p.Spec.ServiceAccountName == "" {
		for i, v := range p.Spec.Volumes {
			if v.Projected == nil {
				continue
			}
			for j, s := range v.Projected.Sources {
				if s.ServiceAccountToken != nil {
					f.forbidden(spec.Child("volumes").Index(i).Child("projected", "sources").Index(j).Child("serviceAccountToken"),
						"must not be specified when serviceAccountName is not set")
				}
			}
		}
	}
	trimmed := func(cs []corev1.Container, kind string) {
		for i := range cs {
			if strings.TrimSpace(cs[i].Image) != cs[i].Image {
				f.add(trimmedImage(&cs[i], spec.Child(kind).Index(i)))
			}
		}
	}
	trimmed(p.Spec.Containers, "containers")
	trimmed(p.Spec.InitContainers, "initContainers")
	return f.list
}

func trimmedImage(c *corev1.Container, at *field.Path) (errs field.ErrorList) {
	if strings.TrimSpace(c.Image) != c.Image {
		errs = append(errs, field.Invalid(at.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	}
	return errs
}

var specTemplate = field.NewPath("spec", "template")

// validateTemplate checks a pod template.
func validateTemplate(t *corev1.PodTemplateSpec, at *field.Path) field.ErrorList {
	var f faults
	f.add(metavalidation.ValidateLabels(t.Labels, at.Child("labels")))
	f.add(validation.ValidateAnnotations(t.Annotations, at.Child("annotations")))
	f.add(validatePodAnnotations(t.Annotations, &t.Spec, at.Child("annotations")))
	f.add(validatePodSpec(&t.Spec, nil, at.Child("spec")))
	f.add(validateProfilesMatch(t.Annotations, &t.Spec, at.Child("spec")))
	if len(t.Spec.EphemeralContainers) > 0 {
		f.forbidden(at.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template")
	}
	return f.list
}

// validatePodSpec checks the spec of a pod, or of a template when meta is nil.
func validatePodSpec(s *corev1.PodSpec, meta *metav1.ObjectMeta, at *field.Path) field.ErrorList {
	c := &podCheck{spec: s, meta: meta, at: at}
	if s.TerminationGracePeriodSeconds == nil {
		c.required(at.Child("terminationGracePeriodSeconds"), "")
	}
	c.checkVolumes(at.Child("volumes"))
	if len(s.ResourceClaims) > 0 {
		c.checkResourceClaims(at.Child("resourceClaims"))
	}
	c.checkContainers(at.Child("containers"))
	if len(s.InitContainers) > 0 {
		c.checkInitContainers(at.Child("initContainers"))
	}
	if len(s.EphemeralContainers) > 0 {
		c.checkEphemeralContainers(at.Child("ephemeralContainers"))
	}
	if s.Resources != nil {
		c.checkPodResources(at.Child("resources"))
	}
	if s.HostNetwork {
		c.checkHostPortsMatch(at.Child("containers"))
	}
	c.checkPolicies()
	if len(s.NodeSelector) > 0 {
		c.add(metavalidation.ValidateLabels(s.NodeSelector, at.Child("nodeSelector")))
	}
	if s.SecurityContext != nil {
		c.checkPodSecurity(at.Child("securityContext"))
	}
	if s.Affinity != nil {
		c.add(validateAffinity(s.Affinity, at.Child("affinity")))
	}
	if s.DNSConfig != nil || s.DNSPolicy == corev1.DNSNone {
		c.checkDNS(at.Child("dnsConfig"))
	}
	for i, gate := range s.ReadinessGates {
		c.add(qualifiedName(string(gate.ConditionType), at.Child("readinessGates").Index(i).Child("conditionType")))
	}
	var gates map[string]bool
	for i, gate := range s.SchedulingGates {
		if gates == nil {
			gates = map[string]bool{}
		}
		p := at.Child("schedulingGates").Index(i)
		c.add(qualifiedName(gate.Name, p))
		if gates[gate.Name] {
			c.duplicate(p, gate.Name)
		}
		gates[gate.Name] = true
	}
	if len(s.TopologySpreadConstraints) > 0 {
		c.checkSpread(at.Child("topologySpreadConstraints"))
	}
	c.checkHostNamespaces()
	c.checkNames()
	if s.ActiveDeadlineSeconds != nil && (*s.ActiveDeadlineSeconds < 1 || *s.ActiveDeadlineSeconds > math.MaxInt32) {
		c.invalid(at.Child("activeDeadlineSeconds"), *s.ActiveDeadlineSeconds, utilvalidation.InclusiveRangeError(1, math.MaxInt32))
	}
	if len(s.Tolerations) > 0 {
		c.add(ValidateTolerations(s.Tolerations, at.Child("tolerations")))
	}
	for i, alias := range s.HostAliases {
		p := at.Child("hostAliases").Index(i)
		c.add(ipValue(alias.IP, nil, p.Child("ip")))
		for j, name := range alias.Hostnames {
			c.add(dnsSubdomain(name, p.Child("hostnames").Index(j)))
		}
	}
	if s.PreemptionPolicy != nil {
		c.add(validatePreemptionPolicy(s.PreemptionPolicy, at.Child("preemptionPolicy")))
	}
	if len(s.Overhead) > 0 {
		c.add(validateResources(&corev1.ResourceRequirements{Limits: s.Overhead}, containerResourceName, nil, at.Child("overhead")))
	}
	if s.OS != nil {
		c.checkOS(at.Child("os"))
	}
	c.checkFileKeyVolumes()
	return c.list
}

func (c *podCheck) checkPolicies() {
	choice(&c.faults, c.spec.RestartPolicy, c.at, "restartPolicy",
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	choice(&c.faults, c.spec.DNSPolicy, c.at, "dnsPolicy",
		corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)
}

// checkNames checks the names of other objects and of the host.
func (c *podCheck) checkNames() {
	s, at := c.spec, c.at
	subdomain := func(name, part string) {
		if name != "" {
			c.add(invalid(NameIsDNSSubdomain(name, false), name, at.Child(part)))
		}
	}
	subdomain(s.ServiceAccountName, "serviceAccountName")
	subdomain(s.NodeName, "nodeName")
	subdomain(s.PriorityClassName, "priorityClassName")
	if s.RuntimeClassName != nil {
		c.add(invalid(NameIsDNSSubdomain(*s.RuntimeClassName, false), *s.RuntimeClassName, at.Child("runtimeClassName")))
	}
	if s.Hostname != "" {
		c.add(dnsLabel(s.Hostname, at.Child("hostname")))
	}
	if s.Subdomain != "" {
		c.add(dnsLabel(s.Subdomain, at.Child("subdomain")))
	}
	if s.HostnameOverride == nil {
		return
	}
	p := at.Child("hostnameOverride")
	if deref(s.SetHostnameAsFQDN, false) {
		c.forbidden(p, "may not be specified when setHostnameAsFQDN is true")
	}
	if s.HostNetwork {
		c.forbidden(p, "may not be specified when hostNetwork is true")
	}
	if len(*s.HostnameOverride) > 64 {
		c.list = append(c.list, field.TooLong(p, "", 64))
	}
	c.add(dnsSubdomain(*s.HostnameOverride, p))
}

// checkHostNamespaces: a pod with users of its own cannot have the host's
// namespaces.
func (c *podCheck) checkHostNamespaces() {
	if c.hostUsers() {
		return
	}
	if c.spec.HostNetwork {
		c.forbidden(c.at.Child("hostNetwork"), "when `hostUsers` is false")
	}
	if c.spec.HostPID {
		c.forbidden(c.at.Child("HostPID"), "when `hostUsers` is false")
	}
	if c.spec.HostIPC {
		c.forbidden(c.at.Child("HostIPC"), "when `hostUsers` is false")
	}
	c.eachContainer(func(ctr *corev1.Container, at place) {
		if len(ctr.VolumeDevices) > 0 {
			c.forbidden(at.path().Child("volumeDevices"), "when `hostUsers` is false")
		}
	})
}

// eachContainer visits init, ordinary and ephemeral containers.
func (c *podCheck) eachContainer(visit func(*corev1.Container, place)) {
	eachContainer(c.spec, c.at, visit)
}

// A place is where a container is in the spec at. Its path is made when asked for.
type place struct {
	at   *field.Path
	list string
	i    int
}

func (p place) path() *field.Path { return p.at.Child(p.list).Index(p.i) }

func eachContainer(s *corev1.PodSpec, at *field.Path, visit func(*corev1.Container, place)) {
	for i := range s.InitContainers {
		visit(&s.InitContainers[i], place{at, "initContainers", i})
	}
	for i := range s.Containers {
		visit(&s.Containers[i], place{at, "containers", i})
	}
	for i := range s.EphemeralContainers {
		visit((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon), place{at, "ephemeralContainers", i})
	}
}

func (c *podCheck) checkHostPortsMatch(at *field.Path) {
	for i := range c.spec.Containers {
		for j, p := range c.spec.Containers[i].Ports {
			if (c.isPod() || p.HostPort != 0) && p.HostPort != p.ContainerPort {
				c.invalid(at.Index(i).Child("ports").Index(j).Child("hostPort"), p.HostPort,
					"must match `containerPort` when `hostNetwork` is true")
			}
		}
	}
}

func (c *podCheck) checkResourceClaims(at *field.Path) {
	c.claims = map[string]bool{}
	for i, claim := range c.spec.ResourceClaims {
		p := at.Index(i)
		if c.meta != nil {
			if _, mirror := c.meta.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
				c.forbidden(field.NewPath(""), "static pods do not support resource claims")
				continue
			}
		}
		switch {
		case claim.Name == "":
			c.required(p.Child("name"), "")
		case c.claims[claim.Name]:
			c.duplicate(p.Child("name"), claim.Name)
		default:
			c.add(dnsLabel(claim.Name, p.Child("name")))
			c.claims[claim.Name] = true
		}
		if claim.ResourceClaimName != nil && claim.ResourceClaimTemplateName != nil {
			c.invalid(p, claim, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified")
		}
		if claim.ResourceClaimName == nil && claim.ResourceClaimTemplateName == nil {
			c.invalid(p, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
		}
		if n := claim.ResourceClaimName; n != nil {
			c.add(invalid(NameIsDNSSubdomain(*n, false), *n, p.Child("resourceClaimName")))
		}
		if n := claim.ResourceClaimTemplateName; n != nil {
			c.add(invalid(NameIsDNSSubdomain(*n, false), *n, p.Child("resourceClaimTemplateName")))
		}
	}
}

func (c *podCheck) checkOS(at *field.Path) {
	switch c.spec.OS.Name {
	case "":
		c.required(at.Child("name"), "")
	case corev1.Linux:
		if sc := c.spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
			c.forbidden(c.at.Child("securityContext", "windowsOptions"), "windows options cannot be set for a linux pod")
		}
		c.eachContainer(func(ctr *corev1.Container, at place) {
			if ctr.SecurityContext != nil && ctr.SecurityContext.WindowsOptions != nil {
				c.forbidden(at.path().Child("securityContext", "windowsOptions"), "windows options cannot be set for a linux pod")
			}
		})
	case corev1.Windows:
		c.checkWindows()
	default:
		c.add(oneOf(c.spec.OS.Name, at, corev1.Linux, corev1.Windows))
	}
}
