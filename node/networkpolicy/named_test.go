package networkpolicy

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// manyNames are pods of a node with a number of ports each that have one name, and policies
// that each look up that name with another one.
func manyNames(t testing.TB, pods, ports, policies int) *world {
	w := empty(t)
	for i := range policies {
		w.policy("x", fmt.Sprint("policy", i), ingress(selects(), networkingv1.NetworkPolicyIngressRule{
			Ports: []networkingv1.NetworkPolicyPort{port(tcp, "a"), port(tcp, fmt.Sprint("z", i))},
		}))
	}
	for i := range pods {
		p := makePod("x", fmt.Sprint("p", i), fmt.Sprintf("10.42.0.%d", 1+i))
		p.Spec.Containers = nil
		for j := range ports {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Ports: []corev1.ContainerPort{{Name: "a", ContainerPort: int32(1 + j)}}})
		}
		w.setPod(p)
	}
	return w
}

// TestNamedPortsOfManyPolicies: a port of a pod is one element in the kernel, however many
// policies look its name up with whatever others.
func TestNamedPortsOfManyPolicies(t *testing.T) {
	const pods, ports, policies = 5, 200, 40
	w := manyNames(t, pods, ports, policies)
	w.write()
	elements := 0
	for id, s := range w.kernel.sets {
		if id != ownSet {
			elements += len(s.elements)
		}
	}
	if elements != pods*ports {
		t.Errorf("%d elements, there are %d ports", elements, pods*ports)
	}
	at := func(n uint16) PortRange { return PortRange{6, n, n} }
	if from, to := addr("10.42.0.1"), addr("10.42.0.2"); !w.kernel.allows(from, to, at(ports)) || w.kernel.allows(from, to, at(ports+1)) {
		t.Error("named ports are not what is allowed")
	}
}

// TestNamesOfManyPeers: each name with each peer is a combination, and they are counted before
// they are made.
func TestNamesOfManyPeers(t *testing.T) {
	rule := manyPeers("l", 100)
	for i := range 100 {
		rule.Ports = append(rule.Ports, port(tcp, fmt.Sprint("n", i)))
	}
	np := &networkingv1.NetworkPolicy{Spec: ingress(selects(), rule)}
	if p := plan(np); p.err == nil || p.size() != 1 {
		t.Errorf("size %d, %v", p.size(), p.err)
	}
	np.Spec.Ingress[0].Ports = rule.Ports[:10]
	if p := plan(np); p.err != nil || len(p.chains[Ingress].Rules) != 1000 {
		t.Errorf("%d rules, %v", len(p.chains[Ingress].Rules), p.err)
	}
}

// BenchmarkNamedPorts is what policies that look names up take to be in force.
func BenchmarkNamedPorts(b *testing.B) {
	for _, c := range []struct{ pods, ports, policies int }{{5, 250, 80}, {5, 1000, 80}, {10, 1000, 1000}} {
		b.Run(fmt.Sprintf("pods=%d/ports=%d/policies=%d", c.pods, c.ports, c.policies), func(b *testing.B) {
			for b.Loop() {
				w := manyNames(b, c.pods, c.ports, c.policies)
				w.index.whole()
			}
		})
	}
}
