package kubeproxy

import (
	"fmt"
	"maps"
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

func eps(s ...*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { return s }

// text shows rules as a person reads them.
func text(r Rules) string {
	var lines []string
	show := func(t Target) string {
		switch {
		case t.Reject:
			return "reject"
		case t.Drop:
			return "drop"
		}
		ch := r.Chains[t.Chain]
		return fmt.Sprintf("%s %v masquerade=%d affinity=%d", strings.SplitN(t.Chain, "-", 2)[0], ch.Endpoints, ch.Masquerade, ch.Affinity)
	}
	for f, t := range r.Addresses {
		lines = append(lines, fmt.Sprintf("%s:%d/%s %s", f.Addr, f.Number, f.Protocol, show(t)))
	}
	for p, t := range r.NodePorts {
		lines = append(lines, fmt.Sprintf("node:%d/%s %s", p.Number, p.Protocol, show(t)))
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
			"10.43.0.7:80/TCP cluster [10.1.0.1:8080 10.1.0.2:8080] masquerade=0 affinity=0\nnode:30080/TCP external [10.1.0.1:8080 10.1.0.2:8080] masquerade=1 affinity=0"},
		"headless":     {service("web", "None", tcp), eps(slice("web", 8080, "10.1.0.1")), ""},
		"no endpoints": {web(), nil, "10.43.0.7:80/TCP reject\nnode:30080/TCP reject"},
		"not ready":    {web(), eps(dead), "10.43.0.7:80/TCP reject\nnode:30080/TCP reject"},
		"ending ones only when no other is": {web(), eps(ending),
			"10.43.0.7:80/TCP cluster [10.1.0.2:8080] masquerade=0 affinity=0\nnode:30080/TCP external [10.1.0.2:8080] masquerade=1 affinity=0"},
		"ending": {web(), eps(allEnding),
			"10.43.0.7:80/TCP cluster [10.1.0.1:8080] masquerade=0 affinity=0\nnode:30080/TCP external [10.1.0.1:8080] masquerade=1 affinity=0"},
		"external local": {web(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }),
			eps(slice("web", 8080, "10.1.0.1", "10.1.0.2")),
			"10.43.0.7:80/TCP cluster [10.1.0.1:8080 10.1.0.2:8080] masquerade=0 affinity=0\nnode:30080/TCP external [10.1.0.1:8080] masquerade=2 affinity=0"},
		"external local, none here": {web(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }),
			eps(func() *discoveryv1.EndpointSlice {
				s := slice("web", 8080, "10.1.0.2")
				s.Endpoints[0].NodeName = new("n2")
				return s
			}()),
			"10.43.0.7:80/TCP cluster [10.1.0.2:8080] masquerade=0 affinity=0\nnode:30080/TCP drop"},
		"affinity and external address": {web(func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.ExternalIPs = []string{"192.0.2.7"}
			s.Spec.Ports[0].NodePort = 0
		}), eps(slice("web", 8080, "10.1.0.1")),
			"10.43.0.7:80/TCP cluster [10.1.0.1:8080] masquerade=0 affinity=10800\n192.0.2.7:80/TCP external [10.1.0.1:8080] masquerade=1 affinity=10800"},
		"endpoints nobody may have": {web(), eps(slice("web", 8080, "127.0.0.1", "169.254.169.254")), "10.43.0.7:80/TCP reject\nnode:30080/TCP reject"},
		"another proxy's":           {web(func(s *corev1.Service) { s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"} }), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := text(plan(c.svc, c.eps, "n1")); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestChainNamesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, ns := range []string{"a", "a-b"} {
		for _, name := range []string{"b-c", "c"} {
			for _, use := range []string{"cluster", "external"} {
				n := chainName(ns, name, "", "TCP", use, false)
				if seen[n] || len(n) > 128 {
					t.Errorf("chain name %q", n)
				}
				seen[n] = true
			}
		}
	}
	if len(slices.Collect(maps.Keys(seen))) != 8 {
		t.Error("names collide")
	}
}
