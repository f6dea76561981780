package endpointslice

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// inZones are ready endpoints, so many in each zone.
func inZones(zones string) (out []discoveryv1.Endpoint) {
	for i, z := range strings.Fields(zones) {
		ep := discoveryv1.Endpoint{TargetRef: &corev1.ObjectReference{UID: types.UID(fmt.Sprintf("p%02d", i))}, Zone: &z}
		if z == "-" {
			ep.Zone = nil
		}
		out = append(out, ep)
	}
	return out
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		name, zones, now string
		ratios           map[string]float64
		want, why        string
	}{
		{"in their own zones", "a a b b", "", map[string]float64{"a": 0.5, "b": 0.5}, "a a b b", ""},
		{"one zone has none", "a a a a", "", map[string]float64{"a": 0.5, "b": 0.5}, "b b a a", ""},
		{"uneven zones", "a a a b b b", "", map[string]float64{"a": 0.25, "b": 0.75}, "b a a b b b", ""},
		{"a zone too small to have its share", "a b", "", map[string]float64{"a": 0.1, "b": 0.9}, "", "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (2 endpoints, 2 zones)"},
		{"uneven zones with many", strings.Repeat("a ", 6) + strings.Repeat("b ", 6), "", map[string]float64{"a": 0.25, "b": 0.75}, "b b b a a a b b b b b b", ""},
		{"what is served now stays", "a a a a", "a b a b", map[string]float64{"a": 0.5, "b": 0.5}, "a b a b", ""},
		{"unless a zone has too few", "a a a a", "a a a b", map[string]float64{"a": 0.5, "b": 0.5}, "b b a a", ""},
		{"or is gone", "a a b b", "c c b b", map[string]float64{"a": 0.5, "b": 0.5}, "a a b b", ""},
		{"fewer endpoints than zones", "a", "", map[string]float64{"a": 0.5, "b": 0.5}, "", "Insufficient number of endpoints (1 endpoints, 2 zones)"},
		{"no zone", "a -", "", map[string]float64{"a": 0.5, "b": 0.5}, "", "One or more endpoints do not have a zone specified"},
		{"one zone alone", "a a", "", map[string]float64{"a": 1}, "", "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"},
	} {
		endpoints, now := inZones(c.zones), map[types.UID]string{}
		for i, z := range strings.Fields(c.now) {
			now[endpoints[i].TargetRef.UID] = z
		}
		zones, why := spread(endpoints, now, c.ratios)
		var got []string
		for _, uid := range slices.Sorted(maps.Keys(zones)) {
			got = append(got, zones[uid])
		}
		if strings.Join(got, " ") != c.want || why != c.why {
			t.Errorf("%s: %v, %q", c.name, got, why)
		}
	}
}

// TestZones: only what changes the zones' shares is told, and it changes them.
func TestZones(t *testing.T) {
	z := zones{of: map[string]share{}}
	node := func(zone, cpu string, ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelTopologyZone: zone}}, Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	control := node("a", "64", corev1.ConditionTrue)
	control.Labels["node-role.kubernetes.io/control-plane"] = ""
	for _, step := range []struct {
		name           string
		node           *corev1.Node
		moved, shifted bool
		shares         string
	}{
		{"n1", node("a", "1", corev1.ConditionTrue), true, true, "map[a:1]"},
		{"n2", node("b", "3", corev1.ConditionFalse), true, false, "map[a:1]"},
		{"n2", node("b", "3", corev1.ConditionTrue), false, true, "map[a:0.25 b:0.75]"},
		{"n2", node("b", "3", corev1.ConditionTrue), false, false, "map[a:0.25 b:0.75]"},
		{"c1", control, true, false, "map[a:0.25 b:0.75]"},
		{"n3", node("", "1", corev1.ConditionTrue), false, true, "map[]"},
		{"n3", nil, false, true, "map[a:0.25 b:0.75]"},
		{"n2", node("c", "3", corev1.ConditionTrue), true, true, "map[a:0.25 c:0.75]"},
		{"n2", nil, false, true, "map[a:1]"},
		{"n9", nil, false, false, "map[a:1]"},
	} {
		moved, shifted := z.see(step.name, step.node)
		if got := fmt.Sprint(z.shares()); moved != step.moved || shifted != step.shifted || got != step.shares {
			t.Errorf("%s: moved %v, shifted %v, %s", step.name, moved, shifted, got)
		}
	}
}
