package networkpolicy

import (
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	tcp, udp, sctp = corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP
)

type allowed func(fromNS, from, toNS, to string) bool

// toA has something to say of connections to x/a, and lets all others through.
func toA(ok func(ns, name string) bool) allowed {
	return func(fromNS, from, toNS, to string) bool { return toNS != "x" || to != "a" || ok(fromNS, from) }
}

// fromA is the same for those from x/a.
func fromA(ok func(ns, name string) bool) allowed {
	return func(fromNS, from, toNS, to string) bool { return fromNS != "x" || from != "a" || ok(toNS, to) }
}

func none(string, string) bool                { return false }
func inY(ns, _ string) bool                   { return ns == "y" }
func isB(_, name string) bool                 { return name == "b" }
func all(string, string, string, string) bool { return true }

// TestPolicies goes by upstream's suite: what each of its policies, here of x/a,
// makes of connections among nine pods in three namespaces.
func TestPolicies(t *testing.T) {
	a, everyPod := selects("pod", "a"), selects()
	ports := func(list ...networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicyPort { return list }
	in := func(peers ...networkingv1.NetworkPolicyPeer) []networkingv1.NetworkPolicySpec {
		return []networkingv1.NetworkPolicySpec{ingress(a, from(peers...))}
	}
	inPorts := func(list ...networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicySpec {
		return []networkingv1.NetworkPolicySpec{ingress(a, networkingv1.NetworkPolicyIngressRule{Ports: list})}
	}
	outPorts := func(peers []networkingv1.NetworkPolicyPeer, list ...networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicySpec {
		return []networkingv1.NetworkPolicySpec{egress(a, networkingv1.NetworkPolicyEgressRule{To: peers, Ports: list})}
	}
	both := ingress(a)
	both.PolicyTypes = append(both.PolicyTypes, networkingv1.PolicyTypeEgress)
	both.Egress = []networkingv1.NetworkPolicyEgressRule{to()}
	byDefault := networkingv1.NetworkPolicySpec{PodSelector: *a, Egress: []networkingv1.NetworkPolicyEgressRule{to(peer(selects("pod", "b"), nil))}}
	notX := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "ns", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"x"}}}}
	for _, c := range []struct {
		name  string
		specs []networkingv1.NetworkPolicySpec
		port  int
		proto byte
		want  allowed
	}{
		{"no policy", nil, 80, syscall.IPPROTO_TCP, all},
		{"deny ingress of a", []networkingv1.NetworkPolicySpec{ingress(a)}, 80, syscall.IPPROTO_TCP, toA(none)},
		{"deny all in the namespace", []networkingv1.NetworkPolicySpec{ingress(everyPod)}, 80, syscall.IPPROTO_UDP, func(_, _, ns, _ string) bool { return ns != "x" }},
		{"deny egress in the namespace", []networkingv1.NetworkPolicySpec{egress(everyPod)}, 80, syscall.IPPROTO_TCP, func(ns, _, _, _ string) bool { return ns != "x" }},
		{"allow everything", in(), 81, syscall.IPPROTO_SCTP, all},
		{"pod selector", in(peer(selects("pod", "b"), nil)), 80, syscall.IPPROTO_TCP, toA(func(ns, n string) bool { return ns == "x" && n == "b" })},
		{"empty pod selector", in(peer(everyPod, nil)), 80, syscall.IPPROTO_TCP, toA(func(ns, _ string) bool { return ns == "x" })},
		{"namespace selector", in(peer(nil, selects("ns", "y"))), 80, syscall.IPPROTO_TCP, toA(inY)},
		{"namespace by name", in(peer(nil, selects("kubernetes.io/metadata.name", "y"))), 80, syscall.IPPROTO_TCP, toA(inY)},
		{"empty namespace selector", in(peer(nil, everyPod)), 80, syscall.IPPROTO_TCP, all},
		{"namespace expressions", in(peer(nil, notX)), 80, syscall.IPPROTO_TCP, toA(func(ns, _ string) bool { return ns != "x" })},
		{"pod and namespace", in(peer(selects("pod", "b"), selects("ns", "y"))), 80, syscall.IPPROTO_TCP, toA(func(ns, n string) bool { return ns == "y" && n == "b" })},
		{"pod or namespace", in(peer(selects("pod", "b"), nil), peer(nil, selects("ns", "y"))), 80, syscall.IPPROTO_TCP, toA(func(ns, n string) bool { return ns == "y" || ns == "x" && n == "b" })},
		{"port", inPorts(port(tcp, 81)), 81, syscall.IPPROTO_TCP, all},
		{"another port", inPorts(port(tcp, 81)), 80, syscall.IPPROTO_TCP, toA(none)},
		{"another protocol", inPorts(port(tcp, 81)), 81, syscall.IPPROTO_UDP, toA(none)},
		{"a protocol", inPorts(port(udp, nil)), 81, syscall.IPPROTO_UDP, all},
		{"two ports", inPorts(port(tcp, 80), port(tcp, 82)), 82, syscall.IPPROTO_TCP, all},
		{"between two ports", inPorts(port(tcp, 80), port(tcp, 82)), 81, syscall.IPPROTO_TCP, toA(none)},
		{"range of ports", inPorts(port(tcp, 80, 90)), 85, syscall.IPPROTO_TCP, all},
		{"outside the range", inPorts(port(tcp, 80, 90)), 91, syscall.IPPROTO_TCP, toA(none)},
		{"named port", inPorts(port(tcp, "serve-81-tcp")), 81, syscall.IPPROTO_TCP, all},
		{"another named port", inPorts(port(tcp, "serve-81-tcp")), 80, syscall.IPPROTO_TCP, toA(none)},
		{"named port of another protocol", inPorts(port(udp, "serve-81-tcp")), 81, syscall.IPPROTO_TCP, toA(none)},
		{"SCTP", inPorts(port(sctp, 80)), 80, syscall.IPPROTO_SCTP, all},
		{"egress to a named port", outPorts(nil, port(tcp, "serve-80-tcp")), 80, syscall.IPPROTO_TCP, all},
		{"egress to a named port of pods", outPorts([]networkingv1.NetworkPolicyPeer{peer(selects("pod", "b"), everyPod)}, port(tcp, "serve-80-tcp")), 80, syscall.IPPROTO_TCP, fromA(isB)},
		{"egress to a namespace", []networkingv1.NetworkPolicySpec{egress(a, to(peer(nil, selects("ns", "y"))))}, 80, syscall.IPPROTO_TCP, fromA(inY)},
		{"egress to a block of IPv4, and all of IPv6", []networkingv1.NetworkPolicySpec{egress(a, to(block("10.42.0.20/30", "10.42.0.21/32"), block("::/0")))}, 80, syscall.IPPROTO_TCP, nil},
		{"deny ingress, allow egress", []networkingv1.NetworkPolicySpec{both}, 80, syscall.IPPROTO_TCP, toA(none)},
		{"types by default", []networkingv1.NetworkPolicySpec{byDefault}, 80, syscall.IPPROTO_TCP, func(fn, f, tn, o string) bool {
			return toA(none)(fn, f, tn, o) && fromA(func(ns, n string) bool { return ns == "x" && n == "b" })(fn, f, tn, o)
		}},
		{"several add up", append(in(peer(selects("pod", "b"), nil)), in(peer(nil, selects("ns", "y")))...), 80, syscall.IPPROTO_TCP, toA(func(ns, n string) bool { return ns == "y" || ns == "x" && n == "b" })},
		{"allow all beside deny", append(in(), ingress(a)), 80, syscall.IPPROTO_TCP, all},
		{"ports of one rule, peers of another", []networkingv1.NetworkPolicySpec{ingress(a,
			networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{peer(nil, selects("ns", "y"))}, Ports: ports(port(tcp, 80))},
			networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{peer(nil, selects("ns", "z"))}, Ports: ports(port(tcp, 81))})},
			80, syscall.IPPROTO_TCP, toA(inY)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			for i, s := range c.specs {
				w.policy("x", strings.Repeat("p", i+1), s)
			}
			w.write()
			if c.want != nil {
				w.probe(t, c.port, c.proto, c.want)
			} else {
				w.probeBlock(t)
			}
			for i := range c.specs { // and nothing is left
				w.index.setPolicy(objectName("x", strings.Repeat("p", i+1)), nil)
			}
			w.write()
			w.probe(t, c.port, c.proto, all)
			if len(w.kernel.sets) != 1 || len(w.kernel.chains) != 0 {
				t.Errorf("%v and %v are left", sortedKeys(w.kernel.sets), sortedKeys(w.kernel.chains))
			}
		})
	}
}

// probeBlock looks at what a block with an exception lets through.
func (w *world) probeBlock(t *testing.T) {
	for n, want := range map[string]bool{"10.42.0.20": true, "10.42.0.21": false, "10.42.0.22": true, "10.42.0.24": false, "fd99::1": true} {
		a := addr(n)
		if got := w.kernel.allows(w.addr("x", "a", a.Is6()), a, PortRange{syscall.IPPROTO_TCP, 80, 80}); got != want {
			t.Errorf("to %s: %v, want %v", n, got, want)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	many := make([]networkingv1.NetworkPolicyPeer, 300)
	for i := range many {
		many[i] = peer(selects("pod", strings.Repeat("a", i%60+1)+strings.Repeat("b", i/60)), nil)
	}
	rules := make([]networkingv1.NetworkPolicyIngressRule, 4)
	for i := range rules {
		rules[i] = from(many...)
	}
	bad := selects()
	bad.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}
	for name, spec := range map[string]networkingv1.NetworkPolicySpec{
		"too many combinations": ingress(selects(), rules...),
		"a peer of nothing":     ingress(selects(), from(networkingv1.NetworkPolicyPeer{})),
		"no block":              ingress(selects(), from(block("10.42.0.0"))),
		"no exception":          ingress(selects(), from(block("10.42.0.0/16", "x"))),
		"no protocol":           ingress(selects(), networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{port("QUIC", 80)}}),
		"no range":              ingress(selects(), networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{port(tcp, 80, 70)}}),
		"no selector":           ingress(bad, from()),
		"no selector of a peer": ingress(selects(), from(peer(bad, nil))),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.policy("x", "p", spec)
			w.write()
			if w.index.policies[objectName("x", "p")].err == nil {
				t.Error("it was accepted")
			}
			w.probe(t, 80, syscall.IPPROTO_TCP, func(_, _, ns, _ string) bool { return ns != "x" }) // closed
		})
	}
}
