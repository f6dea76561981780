package kubeproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func service(name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, Ports: ports},
	}
}

func slice(name string, port int32, addrs ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: &port, Protocol: new(corev1.ProtocolTCP)}},
	}
	for i, a := range addrs {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: new(fmt.Sprintf("n%d", i+1))})
	}
	return s
}

func six(name string, addrs ...string) *discoveryv1.EndpointSlice {
	s := slice(name, 8080, addrs...)
	s.AddressType = discoveryv1.AddressTypeIPv6
	return s
}

func eps(s ...*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { return s }

// text shows rules as a person reads them.
func text(r Rules) string {
	var lines []string
	show := func(t Target) string {
		name := t.Pool
		if t.Pool == "" {
			name = t.Inside
		}
		shown := "drop"
		if t.Reject {
			shown = "reject"
		} else if t.Pool != "" {
			shown = fmt.Sprintf("%s %v masquerade=%d affinity=%d", strings.Split(name, "/")[4], r.Pools[t.Pool].Endpoints, t.Masquerade, r.Pools[t.Pool].Affinity)
		}
		if t.Inside != "" {
			shown += fmt.Sprint(" inside ", r.Pools[t.Inside].Endpoints)
		}
		if t.Firewall != "" {
			shown += fmt.Sprint(" from ", r.Pools[t.Firewall].Ranges)
		}
		return shown
	}
	for f, t := range r.Fronts {
		at := netip.AddrPortFrom(f.Addr, f.Number).String()
		if f.Addr == netip.IPv4Unspecified() {
			at = fmt.Sprintf("node:%d", f.Number)
		} else if f.IsNodePort() {
			at = fmt.Sprintf("node6:%d", f.Number)
		}
		lines = append(lines, fmt.Sprintf("%s/%s %s", at, f.Protocol, show(t)))
	}
	return strings.Join(slices.Sorted(slices.Values(lines)), "\n")
}

func TestPlan(t *testing.T) {
	tcp := corev1.ServicePort{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP}
	web := func(edit ...func(*corev1.Service)) *corev1.Service {
		s := service("web", "10.43.0.7", tcp)
		for _, e := range edit {
			e(s)
		}
		return s
	}
	ending := slice("web", 8080, "10.1.0.1", "10.1.0.2")
	ending.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	dead := slice("web", 8080, "10.1.0.1")
	dead.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false)}
	allEnding := slice("web", 8080, "10.1.0.1")
	allEnding.Endpoints[0].Conditions = ending.Endpoints[0].Conditions

	for name, c := range map[string]struct {
		svc  *corev1.Service
		eps  []*discoveryv1.EndpointSlice
		want string
	}{
		"cluster": {web(), eps(slice("web", 8080, "10.1.0.2", "10.1.0.1")),
			"10.43.0.7:80/TCP cluster [10.1.0.1:8080 10.1.0.2:8080] masquerade=0 affinity=0\nnode:30080/TCP cluster [10.1.0.1:8080 10.1.0.2:8080] masquerade=1 affinity=0"},
		"headless":     {service("web", "None", tcp), eps(slice("web", 8080, "10.1.0.1")), ""},
		"no endpoints": {web(), nil, "10.43.0.7:80/TCP reject\nnode:30080/TCP reject"},
		"not ready":    {web(), eps(dead), "10.43.0.7:80/TCP reject\nnode:30080/TCP reject"},
		"ending ones only when no other is": {web(), eps(ending),
			"10.43.0.7:80/TCP cluster [10.1.0.2:8080] masquerade=0 affinity=0\nnode:30080/TCP cluster [10.1.0.2:8080] masquerade=1 affinity=0"},
		"ending": {web(), eps(allEnding),
			"10.43.0.7:80/TCP cluster [10.1.0.1:8080] masquerade=0 affinity=0\nnode:30080/TCP cluster [10.1.0.1:8080] masquerade=1 affinity=0"},
		"external local": {web(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }),
			eps(slice("web", 8080, "10.1.0.1", "10.1.0.2")),
			"10.43.0.7:80/TCP cluster [10.1.0.1:8080 10.1.0.2:8080] masquerade=0 affinity=0\nnode:30080/TCP local [10.1.0.1:8080] masquerade=2 affinity=0 inside [10.1.0.1:8080 10.1.0.2:8080]"},
		"external local, none here": {web(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }),
			eps(func() *discoveryv1.EndpointSlice {
				s := slice("web", 8080, "10.1.0.2")
				s.Endpoints[0].NodeName = new("n2")
				return s
			}()),
			"10.43.0.7:80/TCP cluster [10.1.0.2:8080] masquerade=0 affinity=0\nnode:30080/TCP drop inside [10.1.0.2:8080]"},
		"affinity and external address": {web(func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.ExternalIPs = []string{"192.0.2.7"}
			s.Spec.Ports[0].NodePort = 0
		}), eps(slice("web", 8080, "10.1.0.1")),
			"10.43.0.7:80/TCP cluster [10.1.0.1:8080] masquerade=0 affinity=10800\n192.0.2.7:80/TCP cluster [10.1.0.1:8080] masquerade=1 affinity=10800"},
		"endpoints nobody may have":           {web(), eps(slice("web", 8080, "127.0.0.1", "169.254.169.254")), "10.43.0.7:80/TCP reject\nnode:30080/TCP reject"},
		"another proxy's label, though empty": {web(func(s *corev1.Service) { s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""} }), nil, ""},
		"headless by label":                   {web(func(s *corev1.Service) { s.Labels = map[string]string{"service.kubernetes.io/headless": ""} }), nil, ""},
		"both families": {web(func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.43.0.7", "fd43::7"} }), eps(slice("web", 8080, "10.1.0.1"), six("web", "fd01::1")),
			"10.43.0.7:80/TCP cluster [10.1.0.1:8080] masquerade=0 affinity=0\n[fd43::7]:80/TCP cluster [[fd01::1]:8080] masquerade=0 affinity=0\n" +
				"node6:30080/TCP cluster [[fd01::1]:8080] masquerade=1 affinity=0\nnode:30080/TCP cluster [10.1.0.1:8080] masquerade=1 affinity=0"},
		"ranges of a load balancer": {web(func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort = 0
			s.Spec.ExternalIPs = []string{"192.0.2.7"}
			s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "10.1.0.0/16", "192.0.2.0/24", "fd00::/8"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.8"}}
		}), eps(slice("web", 8080, "10.1.0.1")),
			"10.43.0.7:80/TCP cluster [10.1.0.1:8080] masquerade=0 affinity=0\n192.0.2.7:80/TCP cluster [10.1.0.1:8080] masquerade=1 affinity=0\n" +
				"192.0.2.8:80/TCP cluster [10.1.0.1:8080] masquerade=1 affinity=0 from [10.0.0.0/8 192.0.2.0/24]"},
		"another proxy's": {web(func(s *corev1.Service) { s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"} }), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := text(plan(c.svc, c.eps, host{name: "n1"})); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}
