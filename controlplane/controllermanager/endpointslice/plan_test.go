package endpointslice

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func podsFrom(first, n int) (out []*corev1.Pod) {
	for i := first; i < first+n; i++ {
		name := fmt.Sprintf("p%04d", i)
		out = append(out, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)},
			Spec:       corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)}}, PodIP: "x",
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
	return out
}

// TestPlan changes the pods of a service step by step and counts the writes.
func TestPlan(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "svc"}, Spec: corev1.ServiceSpec{
		ClusterIP: "10.96.0.9", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP}}}}
	const perSlice = 100
	zone := func(string) string { return "z1" }
	have := map[string]*discoveryv1.EndpointSlice{}
	serial := 0
	for _, step := range []struct {
		name           string
		pods           []*corev1.Pod
		create, update int
		remove, total  int
	}{
		{"no pod: one empty slice", nil, 1, 0, 0, 0},
		{"still none", nil, 0, 0, 0, 0},
		{"150 pods", podsFrom(0, 150), 2, 0, 1, 150},
		{"the same", podsFrom(0, 150), 0, 0, 0, 150},
		{"one more goes where there is room", podsFrom(0, 151), 0, 1, 0, 151},
		{"one of the full slice leaves", podsFrom(1, 150), 0, 1, 0, 150},
		{"the first hundred leave", podsFrom(100, 51), 0, 0, 1, 51},
		{"all leave", nil, 1, 0, 1, 0},
	} {
		var list []*discoveryv1.EndpointSlice
		for _, s := range have {
			list = append(list, s)
		}
		c := plan(svc, step.pods, zone, nil, list, perSlice)
		if got, want := fmt.Sprint(len(c.create), len(c.update), len(c.remove)), fmt.Sprint(step.create, step.update, step.remove); got != want {
			t.Errorf("%s: creates, updates, removes %s; want %s", step.name, got, want)
		}
		for _, s := range c.create {
			serial++
			s.Name = fmt.Sprint(s.GenerateName, serial)
			have[s.Name] = s
		}
		for _, s := range c.update {
			have[s.Name] = s
		}
		for _, s := range c.remove {
			delete(have, s.Name)
		}
		total := 0
		for _, s := range have {
			total += len(s.Endpoints)
			if len(s.Endpoints) > perSlice {
				t.Errorf("%s: %d endpoints in one slice", step.name, len(s.Endpoints))
			}
		}
		if total != step.total {
			t.Errorf("%s: %d endpoints, want %d", step.name, total, step.total)
		}
	}
}

func TestHints(t *testing.T) {
	for _, c := range []struct {
		want, zone, node string
		ready            bool
		hints            string
	}{
		{"", "z", "n", true, ""},
		{corev1.ServiceTrafficDistributionPreferClose, "z", "n", true, "[{z}] []"},
		{corev1.ServiceTrafficDistributionPreferSameZone, "z", "n", true, "[{z}] []"},
		{corev1.ServiceTrafficDistributionPreferSameZone, "", "n", true, ""},
		{corev1.ServiceTrafficDistributionPreferSameNode, "z", "n", true, "[{z}] [{n}]"},
		{corev1.ServiceTrafficDistributionPreferSameNode, "", "n", true, "[] [{n}]"},
		{corev1.ServiceTrafficDistributionPreferSameNode, "", "", true, ""},
		{corev1.ServiceTrafficDistributionPreferSameNode, "z", "n", false, ""},
		{"Unknown", "z", "n", true, ""},
	} {
		svc, ep := &corev1.Service{}, &discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: &c.ready}}
		if c.want != "" {
			svc.Spec.TrafficDistribution = &c.want
		}
		if c.zone != "" {
			ep.Zone = &c.zone
		}
		if c.node != "" {
			ep.NodeName = &c.node
		}
		got := ""
		if h := hints(svc, ep); h != nil {
			got = fmt.Sprint(h.ForZones, " ", h.ForNodes)
		}
		if got != c.hints {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestMaxEndpointsPerSlice: slices hold as many as they may.
func TestMaxEndpointsPerSlice(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"}, Spec: corev1.ServiceSpec{
		ClusterIP: "10.96.0.9", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}}}
	for perSlice, want := range map[int]int{3: 4, 10: 1, 1000: 1} {
		if c := plan(svc, podsFrom(0, 10), func(string) string { return "" }, nil, nil, perSlice); len(c.create) != want {
			t.Errorf("%d slices of %d endpoints, want %d", len(c.create), perSlice, want)
		}
	}
}
