package networkpolicy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// objects are what the API has, and allows says what of it follows, slowly and
// plainly.
type objects struct {
	pods       map[cache.ObjectName]*corev1.Pod
	namespaces map[string]labels.Set
	policies   map[cache.ObjectName]*networkingv1.NetworkPolicy
}

func (o *objects) allows(from, to *corev1.Pod, fromAddr, toAddr netip.Addr, proto byte, number uint16) bool {
	return from == to || o.passes(Egress, from, to, toAddr, to, proto, number) && o.passes(Ingress, to, from, fromAddr, to, proto, number)
}

func (o *objects) passes(d Direction, mine, peer *corev1.Pod, peerAddr netip.Addr, target *corev1.Pod, proto byte, number uint16) bool {
	isolated := false
	for _, np := range o.policies {
		if np.Namespace != mine.Namespace || !matches(&np.Spec.PodSelector, mine.Labels) || !isolates(&np.Spec)[d] {
			continue
		}
		isolated = true
		if d == Ingress {
			for _, r := range np.Spec.Ingress {
				if o.peers(np.Namespace, r.From, peer, peerAddr) && portMatches(r.Ports, target, proto, number) {
					return true
				}
			}
			continue
		}
		for _, r := range np.Spec.Egress {
			if o.peers(np.Namespace, r.To, peer, peerAddr) && portMatches(r.Ports, target, proto, number) {
				return true
			}
		}
	}
	return !isolated
}

func matches(s *metav1.LabelSelector, l labels.Set) bool {
	m, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && m.Matches(l)
}

func (o *objects) peers(ns string, list []networkingv1.NetworkPolicyPeer, p *corev1.Pod, a netip.Addr) bool {
	for _, e := range list {
		switch {
		case e.IPBlock != nil:
			in := netip.MustParsePrefix(e.IPBlock.CIDR).Contains(a)
			for _, x := range e.IPBlock.Except {
				in = in && !netip.MustParsePrefix(x).Contains(a)
			}
			if in {
				return true
			}
		case e.NamespaceSelector == nil:
			if p.Namespace == ns && matches(e.PodSelector, p.Labels) {
				return true
			}
		default:
			l, known := o.namespaces[p.Namespace]
			if known && matches(e.NamespaceSelector, l) && (e.PodSelector == nil || matches(e.PodSelector, p.Labels)) {
				return true
			}
		}
	}
	return len(list) == 0
}

func portMatches(list []networkingv1.NetworkPolicyPort, target *corev1.Pod, proto byte, number uint16) bool {
	for _, p := range list {
		want, _ := protocolNumber(*p.Protocol)
		switch {
		case want != proto:
		case p.Port == nil:
			return true
		case p.Port.StrVal != "":
			for _, c := range target.Spec.Containers[0].Ports {
				if got, _ := protocolNumber(c.Protocol); c.Name == p.Port.StrVal && got == proto && uint16(c.ContainerPort) == number {
					return true
				}
			}
		default:
			last := p.Port.IntVal
			if p.EndPort != nil {
				last = *p.EndPort
			}
			if p.Port.IntVal <= int32(number) && int32(number) <= last {
				return true
			}
		}
	}
	return len(list) == 0
}

// A dice makes random objects.
type dice struct{ *rand.Rand }

func (r dice) selector() *metav1.LabelSelector {
	s := selects()
	switch r.IntN(4) {
	case 0:
	case 1:
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "k", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprint(r.IntN(3))}}}
	default:
		s.MatchLabels["k"] = fmt.Sprint(r.IntN(3))
	}
	return s
}

func (r dice) peers() (list []networkingv1.NetworkPolicyPeer) {
	for range r.IntN(4) {
		switch r.IntN(4) {
		case 0:
			list = append(list, block(fmt.Sprintf("10.42.0.%d/29", 8*r.IntN(6)), fmt.Sprintf("10.42.0.%d/32", r.IntN(48))))
		case 1:
			list = append(list, peer(r.selector(), nil))
		case 2:
			list = append(list, peer(nil, r.selector()))
		default:
			list = append(list, peer(r.selector(), r.selector()))
		}
	}
	return list
}

func (r dice) ports() (list []networkingv1.NetworkPolicyPort) {
	for range r.IntN(3) {
		list = append(list, []networkingv1.NetworkPolicyPort{
			port(tcp, 80), port(tcp, "serve-80-tcp"), port(tcp, "serve-81-tcp"), port(udp, nil), port(tcp, 79, 81), port(tcp, "nobody"),
		}[r.IntN(6)])
	}
	return list
}

func (r dice) spec() networkingv1.NetworkPolicySpec {
	s := networkingv1.NetworkPolicySpec{PodSelector: *r.selector()}
	for range r.IntN(3) {
		s.Ingress = append(s.Ingress, networkingv1.NetworkPolicyIngressRule{From: r.peers(), Ports: r.ports()})
	}
	for range r.IntN(3) {
		s.Egress = append(s.Egress, networkingv1.NetworkPolicyEgressRule{To: r.peers(), Ports: r.ports()})
	}
	s.PolicyTypes = [][]networkingv1.PolicyType{nil, {networkingv1.PolicyTypeIngress}, {networkingv1.PolicyTypeEgress}, {networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}}[r.IntN(4)]
	return s
}

// change changes something, for the index and for the objects.
func (r dice) change(w *world, o *objects) {
	ns := []string{"x", "y"}[r.IntN(2)]
	switch r.IntN(8) {
	case 0:
		if _, had := o.namespaces[ns]; had && r.IntN(3) == 0 {
			delete(o.namespaces, ns)
			w.index.setNamespace(ns, nil, false)
			return
		}
		o.namespaces[ns] = labels.Set{"k": fmt.Sprint(r.IntN(3))}
		w.index.setNamespace(ns, o.namespaces[ns], true)
	case 1, 2, 3:
		name := objectName(ns, fmt.Sprint("policy", r.IntN(4)))
		if r.IntN(3) == 0 {
			delete(o.policies, name)
			w.index.setPolicy(name, nil)
			return
		}
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name.Name}, Spec: r.spec()}
		o.policies[name] = np
		w.index.setPolicy(name, plan(np))
	default:
		i := r.IntN(6)
		name := objectName(ns, fmt.Sprint("pod", i))
		if r.IntN(4) == 0 {
			delete(o.pods, name)
			w.index.setPod(name, nil)
			return
		}
		host := 10 + i
		if ns == "y" {
			host += 20
		}
		p := makePod(ns, name.Name, fmt.Sprintf("10.42.0.%d", host))
		p.Labels = map[string]string{"k": fmt.Sprint(r.IntN(3))}
		switch r.IntN(6) {
		case 0:
			p.Status.PodIPs = nil
		case 1:
			p.Spec.Containers[0].Ports = p.Spec.Containers[0].Ports[:r.IntN(3)]
		case 2: // two names of one port
			p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{Name: "nobody", ContainerPort: 80, Protocol: tcp})
		}
		o.pods[name] = p
		w.index.setPod(name, podOf(p, thisNode))
	}
}

// TestIndex: whatever changes, and however much at once, the kernel comes to
// allow what the objects say, and what it would hold if it were written anew.
func TestIndex(t *testing.T) {
	for seed := range uint64(40) {
		r := dice{rand.New(rand.NewPCG(seed, 7))}
		w := &world{t: t, index: newIndex(thisNode), kernel: newFake()}
		o := &objects{map[cache.ObjectName]*corev1.Pod{}, map[string]labels.Set{}, map[cache.ObjectName]*networkingv1.NetworkPolicy{}}
		for step := range 60 {
			for range 1 + r.IntN(6) {
				r.change(w, o)
			}
			w.write()
			o.compare(t, w.kernel)
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
		}
		anew := newFake()
		if _, err := anew.Apply(w.index.whole(), true); err != nil {
			t.Fatal(err)
		}
		w.kernel.sameAs(t, anew)
		for _, name := range slices.Collect(keysOf(o.pods)) {
			w.index.setPod(name, nil)
		}
		for _, name := range slices.Collect(keysOf(o.policies)) {
			w.index.setPolicy(name, nil)
		}
		for _, ns := range []string{"x", "y"} {
			w.index.setNamespace(ns, nil, false)
		}
		w.write()
		if ix := w.index; len(ix.namespaces)+len(ix.pods)+len(ix.policies)+len(ix.owner)+len(ix.others)+len(ix.wide)+len(ix.named)+len(ix.chains)+len(ix.active)+len(ix.local) != 0 || len(ix.sets) != 1 {
			t.Fatalf("seed %d: the index is left with %+v", seed, ix)
		}
	}
}

func (o *objects) compare(t *testing.T, k *fakeKernel) {
	t.Helper()
	for _, from := range o.pods {
		for _, to := range o.pods {
			if len(from.Status.PodIPs) == 0 || len(to.Status.PodIPs) == 0 {
				continue
			}
			a, b := addr(from.Status.PodIPs[0].IP), addr(to.Status.PodIPs[0].IP)
			for _, c := range []PortRange{{syscall.IPPROTO_TCP, 80, 80}, {syscall.IPPROTO_TCP, 81, 81}, {syscall.IPPROTO_UDP, 80, 80}} {
				if got, want := k.allows(a, b, c), o.allows(from, to, a, b, c.Protocol, c.First); got != want {
					t.Errorf("%s/%s to %s/%s %v: %v, want %v", from.Namespace, from.Name, to.Namespace, to.Name, c, got, want)
				}
			}
		}
	}
}
