package networkpolicy

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"knarr/internal/need"
	"knarr/internal/sctptest"
)

// podsOf adds pods to the index and to the segment.
func (l *live) podsOf(s *segment, pods map[string][]string) {
	l.index.setNamespace("x", map[string]string{"ns": "x"}, true)
	for name, ips := range pods {
		s.attach(name, ips...)
		l.setPod(makePod("x", name, ips...))
	}
}

func threePods() map[string][]string {
	return map[string][]string{"a": {"10.42.0.10", "fd42::10"}, "b": {"10.42.0.11", "fd42::11"}, "c": {"10.42.0.12", "fd42::12"}}
}

// TestKernel sends packets between pods of one node.
func TestKernel(t *testing.T) {
	s := newSegment(t)
	l := newLive(t)
	l.podsOf(s, threePods())
	l.write(true)
	toB := func(ok bool) map[string]bool {
		return map[string]bool{"tcp 10.42.0.11:80": ok, "tcp [fd42::11]:80": ok, "udp 10.42.0.11:80": ok, "udp [fd42::11]:80": ok}
	}
	s.want("a", toB(true))
	kept, err := s.dial("a", "tcp", "10.42.0.11:80", surely)
	must(t, err)
	defer kept.Close()

	l.policy("x", "deny", ingress(selects("pod", "b")))
	l.write(false)
	s.want("a", toB(false))
	s.want("", toB(true))  // a probe of the node
	s.want("b", toB(true)) // and the pod of itself
	s.want("b", map[string]bool{"tcp 10.42.0.10:80": true, "udp [fd42::10]:80": true})
	if !echo(kept, surely) {
		t.Error("a connection from before the policy was cut off")
	}

	l.policy("x", "allow", ingress(selects("pod", "b"), from(peer(selects("pod", "a"), nil))))
	l.write(false)
	s.want("a", toB(true))
	s.want("c", toB(false))
	friend := makePod("x", "c", threePods()["c"]...)
	friend.Labels["pod"] = "a"
	l.setPod(friend)
	l.write(false)
	s.want("c", toB(true))
	l.write(true) // anew, without a packet seeing less
	s.want("c", toB(true))

	l.index.setPolicy(objectName("x", "allow"), nil)
	l.policy("x", "deny", ingress(selects("pod", "b"),
		networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{port(tcp, "serve-81-tcp"), port(udp, 70, 80)}}))
	l.write(false)
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": false, "tcp 10.42.0.11:81": true, "tcp [fd42::11]:81": true, "udp [fd42::11]:80": true, "udp 10.42.0.11:81": false})

	l.policy("x", "deny", ingress(selects("pod", "b"),
		networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{port(tcp, 81), port(udp, 80), port(tcp, 8000, 9000)}}))
	l.write(false)
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": false, "tcp 10.42.0.11:81": true, "udp 10.42.0.11:80": true, "udp 10.42.0.11:81": false})

	l.index.setPolicy(objectName("x", "deny"), nil)
	l.write(false)
	s.want("a", toB(true))
	l.nothingLeft()
}

// TestSCTP is what upstream asks of policies for SCTP: by default, by port, by peer.
func TestSCTP(t *testing.T) {
	need.Root(t)
	sctptest.Need(t)
	s := newSegment(t)
	l := newLive(t)
	l.podsOf(s, threePods())
	must(t, s.in("b", func() error {
		for _, port := range []string{"80", "81"} {
			listener, err := sctptest.Listen("[::]:" + port)
			if err != nil {
				return err
			}
			s.answer(listener)
		}
		return nil
	}))
	l.write(true)
	toB := func(ok80, ok81 bool) map[string]bool {
		return map[string]bool{"sctp 10.42.0.11:80": ok80, "sctp [fd42::11]:80": ok80, "sctp 10.42.0.11:81": ok81, "sctp [fd42::11]:81": ok81}
	}
	s.want("a", toB(true, true))
	kept, err := s.dial("a", "sctp", "10.42.0.11:80", surely)
	must(t, err)
	defer kept.Close()
	l.policy("x", "deny", ingress(selects("pod", "b")))
	l.write(false)
	s.want("a", toB(false, false))
	if !echo(kept, surely) {
		t.Error("an association from before the policy was cut off")
	}
	for _, by := range []networkingv1.NetworkPolicyPort{port(sctp, 81), port(sctp, "serve-81-sctp"), port(sctp, 81, 90)} {
		l.policy("x", "deny", ingress(selects("pod", "b"), networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{by}}))
		l.write(false)
		s.want("a", toB(false, true))
	}
	l.policy("x", "deny", ingress(selects("pod", "b"), networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{port(tcp, 80)}}))
	l.write(false)
	s.want("a", toB(false, false))
	s.want("a", map[string]bool{"tcp 10.42.0.11:80": true})
	l.policy("x", "deny", ingress(selects("pod", "b"), from(peer(selects("pod", "a"), selects("ns", "x")))))
	l.write(false)
	s.want("a", toB(true, true))
	s.want("c", toB(false, false))
}

// nothingLeft says what chains and sets no policy needs.
func (l *live) nothingLeft() {
	l.t.Helper()
	chains, err := l.k.conn.ListChainsOfTableFamily(l.k.table.Family)
	must(l.t, err)
	for _, ch := range chains {
		if ch.Table.Name == l.k.table.Name && ch.Hooknum == nil {
			l.t.Errorf("chain %s is left", ch.Name)
		}
	}
	sets, err := l.k.conn.GetSets(l.k.table)
	must(l.t, err)
	if len(sets) != 8 { // new pods, own pods, two maps, of two families each
		l.t.Errorf("%d sets are left", len(sets))
	}
}
