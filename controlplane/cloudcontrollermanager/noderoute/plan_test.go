package noderoute

import (
	"fmt"
	"net/netip"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

func node(name string, ranges ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: ranges},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}}}
}

func route(node, cidr string, change ...func(*cloudprovider.Route)) *cloudprovider.Route {
	r := &cloudprovider.Route{TargetNode: types.NodeName(node), DestinationCIDR: cidr}
	for _, c := range change {
		c(r)
	}
	return r
}

func TestPlan(t *testing.T) {
	cluster := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/56")}
	hole := func(r *cloudprovider.Route) { r.Blackhole = true }
	at := func(a string) func(*cloudprovider.Route) {
		return func(r *cloudprovider.Route) {
			r.EnableNodeAddresses, r.TargetNodeAddresses = true, []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: a}}
		}
	}
	for name, c := range map[string]struct {
		nodes          []*corev1.Node
		routes         []*cloudprovider.Route
		create, remove string
	}{
		"nothing":                {nil, nil, "", ""},
		"a new node":             {[]*corev1.Node{node("a", "10.42.1.0/24", "fd42:0:0:1::/64")}, nil, "a=10.42.1.0/24 a=fd42:0:0:1::/64 ", ""},
		"a node without a range": {[]*corev1.Node{node("a")}, nil, "", ""},
		"done":                   {[]*corev1.Node{node("a", "10.42.1.0/24")}, []*cloudprovider.Route{route("a", "10.42.1.0/24")}, "", ""},
		"a node that is gone":    {nil, []*cloudprovider.Route{route("a", "10.42.1.0/24")}, "", "a=10.42.1.0/24 "},
		"another range":          {[]*corev1.Node{node("a", "10.42.2.0/24")}, []*cloudprovider.Route{route("a", "10.42.1.0/24")}, "a=10.42.2.0/24 ", "a=10.42.1.0/24 "},
		"to no node":             {nil, []*cloudprovider.Route{route("", "10.42.1.0/24")}, "", "=10.42.1.0/24 "},
		"a black hole":           {[]*corev1.Node{node("a", "10.42.1.0/24")}, []*cloudprovider.Route{route("a", "10.42.1.0/24", hole)}, "a=10.42.1.0/24 ", "a=10.42.1.0/24 "},
		"of others":              {nil, []*cloudprovider.Route{route("x", "172.16.0.0/24"), route("x", "rubbish"), route("x", "10.41.0.0/16")}, "", ""},
		"around the range":       {nil, []*cloudprovider.Route{route("x", "10.0.0.0/8")}, "", ""},
		"same address":           {[]*corev1.Node{node("a", "10.42.1.0/24")}, []*cloudprovider.Route{route("a", "10.42.1.0/24", at("10.0.0.1"))}, "", ""},
		"another address":        {[]*corev1.Node{node("a", "10.42.1.0/24")}, []*cloudprovider.Route{route("a", "10.42.1.0/24", at("10.0.0.2"))}, "a=10.42.1.0/24 ", "a=10.42.1.0/24 "},
	} {
		got := plan(c.nodes, c.routes, cluster)
		create, remove := "", ""
		for _, r := range got.create {
			create += fmt.Sprintf("%s=%s ", r.route.TargetNode, r.route.DestinationCIDR)
		}
		for _, r := range got.remove {
			remove += fmt.Sprintf("%s=%s ", r.TargetNode, r.DestinationCIDR)
		}
		if create != c.create || remove != c.remove {
			t.Errorf("%s: create %q, remove %q; want %q, %q", name, create, remove, c.create, c.remove)
		}
	}
}

func TestCondition(t *testing.T) {
	n := node("a")
	for _, created := range []bool{false, true, false} {
		c, changed := condition(n, created)
		if !changed {
			t.Errorf("%t: not changed", created)
		}
		n.Status.Conditions = []corev1.NodeCondition{c}
		if _, changed := condition(n, created); changed {
			t.Errorf("%t: changed twice", created)
		}
	}
}

// BenchmarkPlan compares 5,000 nodes with their routes, all as they should be.
func BenchmarkPlan(b *testing.B) {
	var nodes []*corev1.Node
	var routes []*cloudprovider.Route
	for i := range 5000 {
		cidr := "10." + strconv.Itoa(64+i/256) + "." + strconv.Itoa(i%256) + ".0/24"
		nodes, routes = append(nodes, node(strconv.Itoa(i), cidr)), append(routes, route(strconv.Itoa(i), cidr))
	}
	cluster := []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10")}
	b.ReportAllocs()
	for b.Loop() {
		if c := plan(nodes, routes, cluster); len(c.create)+len(c.remove) > 0 {
			b.Fatal("a change")
		}
	}
}
