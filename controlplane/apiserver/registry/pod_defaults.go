package registry

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// defaultPod fills what only pods get, then what every pod spec gets.
func defaultPod(p *corev1.Pod) {
	for _, cs := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range cs {
			requestLimits(&cs[i].Resources)
		}
	}
	if p.Spec.Resources != nil {
		defaultPodResources(p)
	}
	if p.Spec.EnableServiceLinks == nil {
		p.Spec.EnableServiceLinks = new(corev1.DefaultEnableServiceLinks)
	}
	defaultPodSpec(&p.Spec)
	// Of a template a negative one stays, with a warning.
	if *p.Spec.TerminationGracePeriodSeconds < 0 {
		p.Spec.TerminationGracePeriodSeconds = new(int64(1))
	}
	if p.Spec.HostNetwork {
		hostPorts(p.Spec.Containers)
		hostPorts(p.Spec.InitContainers)
	}
	defaultPodStatus(&p.Status)
}

// requestLimits requests what is limited and not requested.
func requestLimits(r *corev1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = make(corev1.ResourceList, len(r.Limits))
	}
	for name, q := range r.Limits {
		if _, ok := r.Requests[name]; !ok {
			r.Requests[name] = q.DeepCopy()
		}
	}
}

// defaultPodResources completes resources given for the pod as a whole from
// those of its containers.
func defaultPodResources(p *corev1.Pod) {
	r := p.Spec.Resources
	set := func(list *corev1.ResourceList, from corev1.ResourceList, want func(corev1.ResourceName) bool) {
		for name, q := range from {
			if _, ok := (*list)[name]; ok || !resourcehelper.IsSupportedPodLevelResource(name) || !want(name) {
				continue
			}
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[name] = q.DeepCopy()
		}
	}
	if len(r.Limits) > 0 || len(r.Requests) > 0 {
		set(&r.Limits, resourcehelper.AggregateContainerLimits(p, resourcehelper.PodResourcesOptions{}),
			func(name corev1.ResourceName) bool {
				_, requested := r.Requests[name]
				return isHugePages(name) && !requested
			})
	}
	if len(r.Limits) > 0 {
		set(&r.Requests, resourcehelper.AggregateContainerRequests(p, resourcehelper.PodResourcesOptions{}), overcommits)
		set(&r.Requests, r.Limits, func(corev1.ResourceName) bool { return true })
	}
}

func isHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// overcommits reports whether a resource's request may be below its limit.
func overcommits(name corev1.ResourceName) bool {
	return isNative(name) && !isHugePages(name)
}

// isNative reports whether Kubernetes itself names the resource.
func isNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

func hostPorts(cs []corev1.Container) {
	for i := range cs {
		for j := range cs[i].Ports {
			if p := &cs[i].Ports[j]; p.HostPort == 0 {
				p.HostPort = p.ContainerPort
			}
		}
	}
}

// defaultPodStatus keeps the single addresses the first of the many.
func defaultPodStatus(s *corev1.PodStatus) {
	switch {
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	}
	for i := range s.InitContainerStatuses {
		defaultContainerStatus(&s.InitContainerStatuses[i])
	}
	for i := range s.ContainerStatuses {
		defaultContainerStatus(&s.ContainerStatuses[i])
	}
	for i := range s.EphemeralContainerStatuses {
		defaultContainerStatus(&s.EphemeralContainerStatuses[i])
	}
}

func defaultContainerStatus(s *corev1.ContainerStatus) {
	roundUp(s.AllocatedResources)
	if s.Resources != nil {
		roundUp(s.Resources.Limits)
		roundUp(s.Resources.Requests)
	}
}

// defaultTemplate fills a pod template.
func defaultTemplate(t *corev1.PodTemplateSpec) { defaultPodSpec(&t.Spec) }

func defaultPodSpec(s *corev1.PodSpec) {
	if s.DNSPolicy == "" {
		s.DNSPolicy = corev1.DNSClusterFirst
	}
	if s.RestartPolicy == "" {
		s.RestartPolicy = corev1.RestartPolicyAlways
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = new(int64(corev1.DefaultTerminationGracePeriodSeconds))
	}
	if s.SchedulerName == "" {
		s.SchedulerName = corev1.DefaultSchedulerName
	}
	// one name, two fields
	if s.ServiceAccountName == "" {
		s.ServiceAccountName = s.DeprecatedServiceAccount
	}
	s.DeprecatedServiceAccount = s.ServiceAccountName

	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i])
	}
	for i := range s.InitContainers {
		defaultContainer(&s.InitContainers[i])
	}
	for i := range s.Containers {
		defaultContainer(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		defaultContainer((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon))
	}
	roundUp(s.Overhead)
	if s.Resources != nil {
		roundUp(s.Resources.Limits)
		roundUp(s.Resources.Requests)
	}
}

func defaultContainer(c *corev1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = pullPolicy(c.Image)
	}
	if c.TerminationMessagePath == "" {
		c.TerminationMessagePath = corev1.TerminationMessagePathDefault
	}
	if c.TerminationMessagePolicy == "" {
		c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
	}
	for i := range c.Ports {
		if p := &c.Ports[i]; p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil && from.FileKeyRef.Optional == nil {
				from.FileKeyRef.Optional = new(false)
			}
		}
	}
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		defaultProbe(p)
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
}

// pullPolicy pulls an image always that has no tag, or the tag "latest", and
// no digest.
func pullPolicy(image string) corev1.PullPolicy {
	name, _, digested := strings.Cut(image, "@")
	last := name[strings.LastIndex(name, "/")+1:]
	_, tag, tagged := strings.Cut(last, ":")
	if tag == "latest" || (!tagged && !digested && validImageName(name)) {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// validImageName says roughly whether a name without tag could be an image:
// what cannot be has no tag, not even the implied one.
func validImageName(name string) bool {
	return name != "" && name == strings.TrimSpace(name) && strings.ToLower(name) == name
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	for field, value := range map[*int32]int32{
		&p.TimeoutSeconds: 1, &p.PeriodSeconds: 10, &p.SuccessThreshold: 1, &p.FailureThreshold: 3} {
		if *field == 0 {
			*field = value
		}
	}
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil && p.GRPC.Service == nil {
		p.GRPC.Service = new("")
	}
}

func defaultHTTPGet(h *corev1.HTTPGetAction) {
	if h == nil {
		return
	}
	if h.Path == "" {
		h.Path = "/"
	}
	if h.Scheme == "" {
		h.Scheme = corev1.URISchemeHTTP
	}
}

func defaultFieldRef(f *corev1.ObjectFieldSelector) {
	if f != nil && f.APIVersion == "" {
		f.APIVersion = "v1"
	}
}
