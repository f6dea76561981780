package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func addresses(text string) (all []netip.Addr) {
	for f := range strings.FieldsSeq(text) {
		all = append(all, netip.MustParseAddr(f))
	}
	return all
}

// svc is a Service of TCP ports; the later its name in the alphabet, the younger.
func svc(name string, ports ...int32) service {
	s := service{name: cache.NewObjectName("ns", name), created: time.Unix(int64(name[0]), 0), families: []corev1.IPFamily{corev1.IPv4Protocol}}
	for _, p := range ports {
		s.ports = append(s.ports, port{p, corev1.ProtocolTCP})
	}
	return s
}

func with(s service, change func(*service)) service { change(&s); return s }

var twoNodes = []node{
	{"n1", addresses("203.0.113.1 10.0.0.1 fd00::1"), 10250},
	{"n2", addresses("10.0.0.2 fd00::2"), 10250},
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name     string
		services []service
		want     string
	}{
		{"the nodes' addresses", []service{svc("a", 80)}, "a: 203.0.113.1 10.0.0.1 10.0.0.2"},
		{"two share by port", []service{svc("a", 80), svc("b", 81)}, "a: 203.0.113.1 10.0.0.1 10.0.0.2; b: 203.0.113.1 10.0.0.1 10.0.0.2"},
		{"and by protocol", []service{svc("a", 80), with(svc("b", 80), func(s *service) { s.ports[0].protocol = corev1.ProtocolUDP })},
			"a: 203.0.113.1 10.0.0.1 10.0.0.2; b: 203.0.113.1 10.0.0.1 10.0.0.2"},
		{"the older has it", []service{svc("b", 80, 81), svc("a", 80)}, "a: 203.0.113.1 10.0.0.1 10.0.0.2; b: " +
			"(port 80/TCP at 203.0.113.1 is Service ns/a's) (port 80/TCP at 10.0.0.1 is Service ns/a's) (port 80/TCP at 10.0.0.2 is Service ns/a's)"},
		{"but not what another holds", []service{svc("a", 80), with(svc("b", 80), func(s *service) { s.held = addresses("10.0.0.1") })},
			"a: 203.0.113.1 10.0.0.2 (port 80/TCP at 10.0.0.1 is Service ns/b's); b: 10.0.0.1 " +
				"(port 80/TCP at 203.0.113.1 is Service ns/a's) (port 80/TCP at 10.0.0.2 is Service ns/a's)"},
		{"both families", []service{with(svc("a", 80), func(s *service) { s.families = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol} })},
			"a: fd00::1 fd00::2 203.0.113.1 10.0.0.1 10.0.0.2"},
		{"where endpoints are", []service{with(svc("a", 80), func(s *service) { s.local, s.endpoints = true, map[string]bool{"n2": true} })}, "a: 10.0.0.2"},
		{"nowhere", []service{with(svc("a", 80), func(s *service) { s.local = true })}, "a:"},
		{"the wanted one", []service{with(svc("a", 80), func(s *service) { s.asks, s.wanted = true, addresses("10.0.0.2 192.0.2.1") })}, "a: 10.0.0.2"},
		{"what is no address", []service{with(svc("a", 80), func(s *service) { s.asks, s.bad = true, []string{"here"} })}, `a: ("here" is no IP address)`},
		{"the kubelet's port", []service{svc("a", 443, 10250)}, "a: (port 10250/TCP at 203.0.113.1 is the kubelet's) " +
			"(port 10250/TCP at 10.0.0.1 is the kubelet's) (port 10250/TCP at 10.0.0.2 is the kubelet's)"},
		{"the API server's port", []service{with(svc("a", 6443), func(s *service) { s.asks, s.wanted = true, addresses("10.0.0.1") })}, "a: (port 6443/TCP at 10.0.0.1 is the API server's)"},
	} {
		got := plan(c.services, twoNodes, reservedPorts(map[int32]string{6443: "the API server"}))
		slices.SortFunc(c.services, older)
		var all []string
		for _, s := range c.services {
			text := s.name.Name + ":"
			for _, a := range got[s.name].addresses {
				text += " " + a.String()
			}
			for _, r := range got[s.name].refused {
				text += " (" + r + ")"
			}
			all = append(all, text)
		}
		if joined := strings.Join(all, "; "); joined != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, joined, c.want)
		}
	}
}

// What a plan gives is what the next plan finds: it must stay so.
func TestPlanStays(t *testing.T) {
	services := []service{svc("a", 80), svc("b", 80, 81), svc("c", 81), svc("d", 82)}
	services[1].held = addresses("10.0.0.2")
	first := plan(services, twoNodes, nil)
	for i := range services {
		services[i].held = first[services[i].name].addresses
	}
	if second := plan(services, twoNodes, nil); fmt.Sprint(first) != fmt.Sprint(second) {
		t.Errorf("first %v, then %v", first, second)
	}
}

func TestNodeOf(t *testing.T) {
	ready := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	status := corev1.NodeStatus{Conditions: ready, Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n1"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "127.0.0.1"},
		{Type: corev1.NodeInternalIP, Address: "fe80::1"}, {Type: corev1.NodeInternalIP, Address: "nonsense"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.1"},
	}}
	of, ok := nodeOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: status})
	if got := fmt.Sprint(of.addresses); !ok || got != "[203.0.113.1 10.0.0.1]" {
		t.Error(ok, got)
	}
	excluded := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelNodeExcludeBalancers: ""}}, Status: status}
	if _, ok := nodeOf(excluded); ok {
		t.Error("a node that is excluded")
	}
	status.Conditions = nil
	if _, ok := nodeOf(&corev1.Node{Status: status}); ok {
		t.Error("a node that is not ready")
	}
}

func TestServiceOf(t *testing.T) {
	s := &corev1.Service{}
	if of := serviceOf(s); of.asks {
		t.Error(of)
	}
	s.Spec.LoadBalancerIP = "10.0.0.9"
	if of := serviceOf(s); fmt.Sprint(of.wanted) != "[10.0.0.9]" || !of.asks {
		t.Error(of)
	}
	s.Annotations = map[string]string{"metallb.io/loadBalancerIPs": "10.0.0.1, fd00::1,garbage"}
	if of := serviceOf(s); fmt.Sprint(of.wanted, of.bad) != "[10.0.0.1 fd00::1] [garbage]" {
		t.Error(of)
	}
	s.Annotations["knarr.io/load-balancer-ips"] = "10.0.0.2"
	if of := serviceOf(s); fmt.Sprint(of.wanted) != "[10.0.0.2]" {
		t.Error(of)
	}
	s.Annotations = map[string]string{"knarr.io/load-balancer-ips": "garbage"}
	if of := serviceOf(s); len(of.wanted) > 0 || !of.asks {
		t.Error("a Service that asks for garbage must not get just any address:", of)
	}
}

// TestNone: a Service without an address hears which of its wishes nothing can meet.
func TestNone(t *testing.T) {
	ready := []node{{name: "a", addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}
	for _, c := range []struct {
		what  string
		s     service
		nodes []node
		want  string
	}{
		{"no node that may serve", service{}, nil, "exclude-from-external-load-balancers"},
		{"an address of nobody", service{asks: true, wanted: []netip.Addr{netip.MustParseAddr("192.0.2.200")}}, ready, "neither in an address pool nor a ready node's: 192.0.2.200"},
		{"no endpoint", service{local: true}, ready, "no node has a ready endpoint"},
		{"another family", service{families: []corev1.IPFamily{corev1.IPv6Protocol}}, ready, "of its IP families"},
	} {
		if got := c.s.none(c.nodes); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}
