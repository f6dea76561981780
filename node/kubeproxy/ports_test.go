package kubeproxy

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// manyPorts is a Service of n ports, and slices of one endpoint each, whose pods
// have numbers of their own for them.
func manyPorts(n, slices int) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	svc, all := service("ports", "10.43.0.7"), []*discoveryv1.EndpointSlice{}
	for i := range slices {
		s := slice("ports", 8080, fmt.Sprint("10.1.0.", 1+i))
		s.Name, s.Ports = fmt.Sprint("ports-", i), nil
		all = append(all, s)
	}
	for i := range n {
		name := fmt.Sprint("p", i)
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(1 + i), Protocol: corev1.ProtocolTCP})
		for j, s := range all {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: new(int32(1 + (i+j)%60_000)), Protocol: new(corev1.ProtocolTCP)})
		}
	}
	return svc, all
}

// TestPortsOfSlices: a port goes through its own ports of the slices, and no others. What all
// of them go through together is what there is.
func TestPortsOfSlices(t *testing.T) {
	svc, all := manyPorts(2000, 5)
	ports, through := portsOf(all, false), 0
	for _, p := range svc.Spec.Ports {
		own := ports[portKey{p.Name, p.Protocol}]
		if through += len(own); len(own) != len(all) {
			t.Fatalf("port %s goes through %d of %d slices", p.Name, len(own), len(all))
		}
	}
	if want := 2000 * 5; through != want {
		t.Errorf("all go through %d ports, there are %d", through, want)
	}
	r := plan(svc, all, host{name: "n1"})
	for name, p := range r.Pools {
		if len(p.Endpoints) != 5 {
			t.Fatalf("%s has %v", name, p.Endpoints)
		}
	}
	if len(r.Pools) != 2000 {
		t.Errorf("%d pools", len(r.Pools))
	}
}

// TestPortsOfSlicesByNameAndProtocol: a port of a slice is that of the Service's port of its
// name and protocol, TCP if it has none.
func TestPortsOfSlicesByNameAndProtocol(t *testing.T) {
	s := slice("web", 8080, "10.1.0.1")
	s.Ports = []discoveryv1.EndpointPort{
		{Name: new("a"), Port: new(int32(1))},
		{Name: new("b"), Port: new(int32(2)), Protocol: new(corev1.ProtocolUDP)},
		{Name: new("c"), Protocol: new(corev1.ProtocolTCP)}, // any port
		{Port: new(int32(4)), Protocol: new(corev1.ProtocolSCTP)},
	}
	for key, want := range map[portKey]string{
		{"a", corev1.ProtocolTCP}: "1", {"a", corev1.ProtocolUDP}: "", {"b", corev1.ProtocolUDP}: "2", {"b", corev1.ProtocolTCP}: "",
		{"c", corev1.ProtocolTCP}: "", {"", corev1.ProtocolSCTP}: "4",
	} {
		got := ""
		for _, p := range portsOf(eps(s), false)[key] {
			got += fmt.Sprint(p.number)
		}
		if got != want {
			t.Errorf("%v: %q, want %q", key, got, want)
		}
	}
	if ports := portsOf(eps(s), true); len(ports) != 0 {
		t.Errorf("of the other family: %v", ports)
	}
}

// BenchmarkPlanOfManyPorts is one look at a Service of n ports: as long again for twice as many.
func BenchmarkPlanOfManyPorts(b *testing.B) {
	for _, n := range []int{1000, 4000, 20000} {
		b.Run(fmt.Sprint("ports=", n), func(b *testing.B) {
			svc, all := manyPorts(n, 5)
			for b.Loop() {
				plan(svc, all, host{name: "n1"})
			}
		})
	}
}
