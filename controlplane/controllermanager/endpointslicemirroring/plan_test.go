package endpointslicemirroring

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func addresses(ips ...string) (out []corev1.EndpointAddress) {
	for _, ip := range ips {
		out = append(out, corev1.EndpointAddress{IP: ip})
	}
	return out
}

func ports(numbers ...int32) (out []corev1.EndpointPort) {
	for _, n := range numbers {
		out = append(out, corev1.EndpointPort{Name: fmt.Sprint("p", n), Port: n, Protocol: corev1.ProtocolTCP})
	}
	return out
}

// text says what slices hold.
func text(list []*discoveryv1.EndpointSlice) string {
	var all []string
	for _, s := range list {
		var parts []string
		for _, p := range s.Ports {
			parts = append(parts, fmt.Sprint(*p.Port))
		}
		slices.Sort(parts)
		for _, e := range s.Endpoints {
			parts = append(parts, e.Addresses[0]+map[bool]string{true: "", false: "!"}[*e.Conditions.Ready])
		}
		all = append(all, string(s.AddressType)+" "+strings.Join(parts, " "))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

func TestPlan(t *testing.T) {
	many := make([]string, 1002)
	for i := range many {
		many[i] = fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)
	}
	for _, c := range []struct {
		name          string
		subsets       []corev1.EndpointSubset
		want          string
		invalid, over int
	}{
		{"none", nil, "", 0, 0},
		{"one", []corev1.EndpointSubset{{Addresses: addresses("10.0.0.1"), Ports: ports(80, 443)}}, "IPv4 443 80 10.0.0.1", 0, 0},
		{"no port", []corev1.EndpointSubset{{Addresses: addresses("10.0.0.1")}}, "IPv4 10.0.0.1", 0, 0},
		{"not ready", []corev1.EndpointSubset{{Addresses: addresses("10.0.0.2"), NotReadyAddresses: addresses("10.0.0.1"), Ports: ports(80)}},
			"IPv4 80 10.0.0.2 10.0.0.1!", 0, 0},
		{"not ready once is not ready", []corev1.EndpointSubset{{Addresses: addresses("10.0.0.1"), Ports: ports(80)}, {NotReadyAddresses: addresses("10.0.0.1"), Ports: ports(80)}},
			"IPv4 80 10.0.0.1!", 0, 0},
		{"equal ports are one", []corev1.EndpointSubset{{Addresses: addresses("10.0.0.1"), Ports: ports(80)}, {Addresses: addresses("10.0.0.2"), Ports: ports(80)}},
			"IPv4 80 10.0.0.1 10.0.0.2", 0, 0},
		{"equal hosts are one", []corev1.EndpointSubset{{Addresses: addresses("10.0.0.1"), Ports: ports(80)}, {Addresses: addresses("10.0.0.1"), Ports: ports(443)}},
			"IPv4 443 80 10.0.0.1", 0, 0},
		{"families", []corev1.EndpointSubset{{Addresses: addresses("10.0.0.1", "fd00::0:1", "010.0.0.2", "bad"), Ports: ports(80)}},
			"IPv4 80 10.0.0.2 10.0.0.1; IPv6 80 fd00::1", 1, 0},
		{"too many", []corev1.EndpointSubset{{Addresses: addresses(many...), Ports: ports(80)}}, "1000", 0, 2},
	} {
		ep := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "n", UID: "u"}, Subsets: c.subsets}
		got := plan(ep, nil, 1000)
		summary := text(got.create)
		if c.want == "1000" && len(got.create) == 1 {
			summary = fmt.Sprint(len(got.create[0].Endpoints))
		}
		if summary != c.want || got.invalid != c.invalid || got.over != c.over || len(got.update)+len(got.remove) > 0 {
			t.Errorf("%s: %s, %d invalid, %d over", c.name, summary, got.invalid, got.over)
		}
		if again := plan(ep, got.create, 1000); len(again.create)+len(again.update)+len(again.remove) > 0 {
			t.Errorf("%s: a second plan changes %+v", c.name, again)
		}
	}
}

// TestChanges: what changes is told from what stays, and a slice that is left
// over becomes the one that is missing.
func TestChanges(t *testing.T) {
	ep := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "n", UID: "u", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"keep": "1", corev1.LastAppliedConfigAnnotation: "x", corev1.EndpointsLastChangeTriggerTime: "y"}},
		Subsets: []corev1.EndpointSubset{{Addresses: addresses("10.0.0.1"), Ports: ports(80)}}}
	have := plan(ep, nil, 1000).create
	have[0].Name = "e-1"
	if s := have[0]; s.Labels["a"] != "b" || s.Labels[discoveryv1.LabelServiceName] != "e" || s.Labels[discoveryv1.LabelManagedBy] != manager ||
		len(s.Annotations) != 1 || s.Annotations["keep"] != "1" || s.OwnerReferences[0].Kind != "Endpoints" || s.GenerateName != "e-" {
		t.Errorf("%+v", s.ObjectMeta)
	}
	ep.Subsets[0].Ports = ports(81)
	c := plan(ep, slices.Clone(have), 1000)
	if len(c.create)+len(c.remove) > 0 || text(c.update) != "IPv4 81 10.0.0.1" || c.update[0].Name != "e-1" {
		t.Errorf("another port: %+v", c)
	}
	ep.Subsets[0].Addresses = addresses("fd00::1")
	c = plan(ep, slices.Clone(have), 1000)
	if len(c.update) > 0 || text(c.create) != "IPv6 81 fd00::1" || len(c.remove) != 1 {
		t.Errorf("another family: %+v", c)
	}
	ep.Subsets = nil
	if c = plan(ep, slices.Clone(have), 1000); len(c.create)+len(c.update) > 0 || len(c.remove) != 1 {
		t.Errorf("no address: %+v", c)
	}
	ep.UID = "other"
	ep.Subsets = []corev1.EndpointSubset{{Addresses: addresses("10.0.0.1"), Ports: ports(80)}}
	if c = plan(ep, slices.Clone(have), 1000); len(c.update) != 1 || c.update[0].OwnerReferences[0].UID != "other" {
		t.Errorf("a new Endpoints of the same name: %+v", c)
	}
}
