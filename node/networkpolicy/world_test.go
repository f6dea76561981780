package networkpolicy

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
)

const thisNode = "n1"

// A world is upstream's: namespaces x, y, z with pods a, b, c each, which serve
// ports 80 and 81 of each protocol with names.
type world struct {
	t      testing.TB
	index  *index
	kernel *fakeKernel
	pods   map[cache.ObjectName]*corev1.Pod
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, index: newIndex(thisNode), kernel: newFake(), pods: map[cache.ObjectName]*corev1.Pod{}}
	for i, ns := range []string{"x", "y", "z"} {
		w.index.setNamespace(ns, map[string]string{"ns": ns, "kubernetes.io/metadata.name": ns}, true)
		for j, name := range []string{"a", "b", "c"} {
			p := makePod(ns, name, fmt.Sprintf("10.42.0.%d", 10*(i+1)+j), fmt.Sprintf("fd42::%d", 10*(i+1)+j))
			w.setPod(p)
		}
	}
	w.write()
	return w
}

func makePod(ns, name string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(ns + "-" + name), Labels: map[string]string{"pod": name}}}
	p.Spec.NodeName = thisNode
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	c := corev1.Container{}
	for _, port := range []int32{80, 81} {
		for proto, suffix := range map[corev1.Protocol]string{corev1.ProtocolTCP: "tcp", corev1.ProtocolUDP: "udp", corev1.ProtocolSCTP: "sctp"} {
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: fmt.Sprintf("serve-%d-%s", port, suffix), ContainerPort: port, Protocol: proto})
		}
	}
	p.Spec.Containers = []corev1.Container{c}
	return p
}

func (w *world) setPod(p *corev1.Pod) {
	name := cache.MetaObjectToName(p)
	w.pods[name] = p
	w.index.setPod(name, podOf(p, thisNode))
}

// write takes changes to the kernel, which hold at first all there is.
func (w *world) write() {
	w.t.Helper()
	changes, all := w.index.take(), len(w.kernel.sets) == 0
	if all {
		changes = w.index.whole()
	}
	if _, err := w.kernel.Apply(changes, all); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) policy(ns, name string, spec networkingv1.NetworkPolicySpec) {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: spec}
	w.index.setPolicy(cache.MetaObjectToName(np), plan(np))
}

func (w *world) addr(ns, name string, v6 bool) netip.Addr {
	p := w.pods[cache.NewObjectName(ns, name)]
	for _, ip := range p.Status.PodIPs {
		if a := netip.MustParseAddr(ip.IP); a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}

// probe asks each pod from each, by both families. A pod always reaches itself.
func (w *world) probe(t *testing.T, port int, proto byte, allowed func(fromNS, from, toNS, to string) bool) {
	t.Helper()
	for from := range w.pods {
		for to := range w.pods {
			for _, v6 := range families {
				got := w.kernel.allows(w.addr(from.Namespace, from.Name, v6), w.addr(to.Namespace, to.Name, v6), PortRange{Protocol: proto, First: uint16(port)})
				if want := allowed(from.Namespace, from.Name, to.Namespace, to.Name) || from == to; got != want {
					t.Errorf("%s to %s, port %d of protocol %d, IPv6 %v: %v, want %v", from, to, port, proto, v6, got, want)
				}
			}
		}
	}
}

func selects(kv ...string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := 0; i < len(kv); i += 2 {
		s.MatchLabels[kv[i]] = kv[i+1]
	}
	return s
}

func peer(pods, namespaces *metav1.LabelSelector) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{PodSelector: pods, NamespaceSelector: namespaces}
}

func block(cidr string, except ...string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
}

func port(proto corev1.Protocol, p any, end ...int32) networkingv1.NetworkPolicyPort {
	np := networkingv1.NetworkPolicyPort{Protocol: &proto}
	switch p := p.(type) {
	case int:
		v := intstr.FromInt32(int32(p))
		np.Port = &v
	case string:
		v := intstr.FromString(p)
		np.Port = &v
	}
	if len(end) > 0 {
		np.EndPort = &end[0]
	}
	return np
}

func ingress(pods *metav1.LabelSelector, rules ...networkingv1.NetworkPolicyIngressRule) networkingv1.NetworkPolicySpec {
	return networkingv1.NetworkPolicySpec{PodSelector: *pods, Ingress: rules, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}
}

func egress(pods *metav1.LabelSelector, rules ...networkingv1.NetworkPolicyEgressRule) networkingv1.NetworkPolicySpec {
	return networkingv1.NetworkPolicySpec{PodSelector: *pods, Egress: rules, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}}
}

func from(peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyIngressRule {
	return networkingv1.NetworkPolicyIngressRule{From: peers}
}

func to(peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyEgressRule {
	return networkingv1.NetworkPolicyEgressRule{To: peers}
}

func objectName(ns, name string) cache.ObjectName { return cache.NewObjectName(ns, name) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func uidOf(s string) types.UID { return types.UID(s) }

func keysOf[K comparable, V any](m map[K]V) func(func(K) bool) { return maps.Keys(m) }
