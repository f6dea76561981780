package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// services: addresses, families and ports are allocated by the handlers
// before Prepare and Validate see the object.
var services = &Kind[*corev1.Service]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Service"),
	Plural:           "services",
	Short:            []string{"svc"},
	Categories:       []string{"all"},
	Prefix:           "services/specs",
	CreateOnUpdate:   true,
	NameRule:         NameIsDNSLabel,

	Default: defaultService,
	Prepare: func(_ context.Context, s, old *corev1.Service) {
		NormalizeClusterIPs(s, old)
		if old == nil {
			s.Status = corev1.ServiceStatus{}
			return
		}
		s.Status = old.Status
		KeepAllocated(s, old)
		dropForeignFields(s, old)
	},
	Validate: validateService,
	Warn:     func(_ context.Context, s, _ *corev1.Service) []string { return warnService(s) },
	Fields: func(s *corev1.Service) fields.Set {
		return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
	},
	Columns: serviceColumns,
	Sub: []Subresource[*corev1.Service]{
		{Name: "proxy", Kind: corev1.SchemeGroupVersion.WithKind("ServiceProxyOptions"),
			Verbs: []string{"create", "delete", "get", "patch", "update"}},
		statusOf(func(s, old *corev1.Service) { s.Spec = old.Spec }, validateServiceStatus),
	},
}

func defaultService(s *corev1.Service) {
	fill(&s.Spec.SessionAffinity, corev1.ServiceAffinityNone)
	fill(&s.Spec.Type, corev1.ServiceTypeClusterIP)
	switch c := s.Spec.SessionAffinityConfig; s.Spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		s.Spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{
				TimeoutSeconds: new(corev1.DefaultClientIPServiceAffinitySeconds)}}
		}
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		fill(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if externallyAccessible(s) {
		fill(&s.Spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		if s.Spec.InternalTrafficPolicy == nil {
			s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
		}
	case corev1.ServiceTypeExternalName: // stored by mistake once, never shown
		s.Spec.InternalTrafficPolicy = nil
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		if s.Spec.AllocateLoadBalancerNodePorts == nil {
			s.Spec.AllocateLoadBalancerNodePorts = new(true)
		}
		for i := range s.Status.LoadBalancer.Ingress {
			if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" && in.IPMode == nil {
				in.IPMode = new(corev1.LoadBalancerIPModeVIP)
			}
		}
	}
}

func externallyAccessible(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeClusterIP:
		return len(s.Spec.ExternalIPs) > 0
	}
	return false
}

func needsHealthCheck(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func needsClusterIP(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }

func needsNodePort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

func isHeadless(s *corev1.Service) bool {
	return len(s.Spec.ClusterIPs) == 1 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

// NormalizeClusterIPs guesses what a client meant that knows only one of
// clusterIP and clusterIPs. old is nil on create.
func NormalizeClusterIPs(s, old *corev1.Service) {
	now := &s.Spec
	if old == nil {
		if now.ClusterIP != "" && len(now.ClusterIPs) == 0 {
			now.ClusterIPs = []string{now.ClusterIP}
		}
		return
	}
	was := &old.Spec
	if was.ClusterIP == now.ClusterIP {
		if len(now.ClusterIPs) == 0 {
			now.ClusterIPs = slices.Clone(was.ClusterIPs)
		}
		return
	}
	if !slices.Equal(was.ClusterIPs, now.ClusterIPs) {
		return // both given: validation says whether they agree
	}
	if now.ClusterIP == "" {
		now.ClusterIPs = nil
	} else {
		now.ClusterIPs = []string{now.ClusterIP}
	}
}

// KeepAllocated gives an update the allocated values it leaves out.
func KeepAllocated(s, old *corev1.Service) {
	if needsClusterIP(old) && needsClusterIP(s) {
		fill(&s.Spec.ClusterIP, old.Spec.ClusterIP)
		if len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
	}
	if needsNodePort(old) && needsNodePort(s) {
		keepNodePorts(s, old)
	}
	if needsHealthCheck(old) && needsHealthCheck(s) && s.Spec.HealthCheckNodePort == 0 {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

// keepNodePorts fills node ports by port name, but none that the update uses.
func keepNodePorts(s, old *corev1.Service) {
	used := map[int32]bool{}
	for _, p := range s.Spec.Ports {
		used[p.NodePort] = true
	}
	before := map[string]int32{}
	for _, p := range old.Spec.Ports {
		before[p.Name] = p.NodePort
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if was := before[p.Name]; p.NodePort == 0 && !used[was] {
			p.NodePort = was
		}
	}
}

// dropForeignFields clears what the old type needed and the new one does not,
// unless the client changed it.
func dropForeignFields(s, old *corev1.Service) {
	now, was := &s.Spec, &old.Spec
	if needsClusterIP(old) && !needsClusterIP(s) {
		if now.ClusterIP == was.ClusterIP && slices.Equal(now.ClusterIPs, was.ClusterIPs) {
			now.ClusterIP, now.ClusterIPs = "", nil
		}
		if slices.Equal(now.IPFamilies, was.IPFamilies) {
			now.IPFamilies = nil
		}
		if same(now.IPFamilyPolicy, was.IPFamilyPolicy) {
			now.IPFamilyPolicy = nil
		}
	}
	if needsNodePort(old) && !needsNodePort(s) && noNewNodePorts(now.Ports, was.Ports) {
		for i := range now.Ports {
			now.Ports[i].NodePort = 0
		}
	}
	if needsHealthCheck(old) && !needsHealthCheck(s) && now.HealthCheckNodePort == was.HealthCheckNodePort {
		now.HealthCheckNodePort = 0
	}
	if was.Type == corev1.ServiceTypeLoadBalancer && now.Type != corev1.ServiceTypeLoadBalancer {
		if same(now.AllocateLoadBalancerNodePorts, was.AllocateLoadBalancerNodePorts) {
			now.AllocateLoadBalancerNodePorts = nil
		}
		if same(now.LoadBalancerClass, was.LoadBalancerClass) {
			now.LoadBalancerClass = nil
		}
	}
	if externallyAccessible(old) && !externallyAccessible(s) && now.ExternalTrafficPolicy == was.ExternalTrafficPolicy {
		now.ExternalTrafficPolicy = ""
	}
	if now.Type != corev1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
}

func noNewNodePorts(now, was []corev1.ServicePort) bool {
	for _, p := range now {
		if p.NodePort != 0 && !slices.ContainsFunc(was, func(o corev1.ServicePort) bool { return o.NodePort == p.NodePort }) {
			return false
		}
	}
	return true
}

var serviceColumns = []Column[*corev1.Service]{
	nameColumn[*corev1.Service](),
	column("Type", "string", corev1.ServiceSpec{}.SwaggerDoc()["type"], 0,
		func(s *corev1.Service) any { return string(s.Spec.Type) }),
	column("Cluster-IP", "string", corev1.ServiceSpec{}.SwaggerDoc()["clusterIP"], 0, func(s *corev1.Service) any {
		if len(s.Spec.ClusterIPs) == 0 {
			return "<none>"
		}
		return s.Spec.ClusterIPs[0]
	}),
	column("External-IP", "string", corev1.ServiceSpec{}.SwaggerDoc()["externalIPs"], 0,
		func(s *corev1.Service) any { return externalIP(s) }),
	column("Port(s)", "string", corev1.ServiceSpec{}.SwaggerDoc()["ports"], 0,
		func(s *corev1.Service) any { return servicePorts(s) }),
	ageColumn[*corev1.Service](),
	column("Selector", "string", corev1.ServiceSpec{}.SwaggerDoc()["selector"], 1,
		func(s *corev1.Service) any { return labels.FormatLabels(s.Spec.Selector) }),
}

func servicePorts(s *corev1.Service) string {
	var all []string
	for _, p := range s.Spec.Ports {
		if p.NodePort > 0 {
			all = append(all, fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol))
		} else {
			all = append(all, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
	}
	return orElse(strings.Join(all, ","), "<none>")
}

func externalIP(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return orElse(strings.Join(s.Spec.ExternalIPs, ","), "<none>")
	case corev1.ServiceTypeLoadBalancer:
		var all []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			if a := orElse(in.IP, in.Hostname); a != "" {
				all = append(all, a)
			}
		}
		slices.Sort(all)
		all = append(slices.Compact(all), s.Spec.ExternalIPs...)
		return orElse(strings.Join(all, ","), "<pending>")
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	}
	return "<unknown>"
}
