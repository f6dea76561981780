package endpointslice

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func sliceOf(service, name string, port int32, pods ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: manager}}, AddressType: discoveryv1.AddressTypeIPv4}
	if port > 0 {
		s.Ports = []discoveryv1.EndpointPort{{Port: &port}}
	}
	for _, p := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{TargetRef: &corev1.ObjectReference{UID: types.UID(p)}})
	}
	return s
}

// TestCountSlices: endpoints, slices, and how many of these would do.
func TestCountSlices(t *testing.T) {
	foreign := sliceOf("a", "x", 80, "z")
	foreign.Labels[discoveryv1.LabelManagedBy] = "another"
	all := []any{
		sliceOf("a", "a1", 80, "1", "2"), sliceOf("a", "a2", 80, "3"), // two would do for three, as there are two
		sliceOf("b", "b1", 80, "1"), sliceOf("b", "b2", 80, "2"), // one would do
		sliceOf("b", "b3", 81, "3"), // another list of ports
		sliceOf("empty", "e", 0),
		foreign,
	}
	if endpoints, number, least := countSlices(all, 2); endpoints != 6 || number != 6 || least != 5 {
		t.Errorf("%d endpoints, %d slices, %d would do", endpoints, number, least)
	}
}

// TestEndpointsOfChanges: what moves from one slice to another has neither come nor gone.
func TestEndpointsOfChanges(t *testing.T) {
	have := []*discoveryv1.EndpointSlice{sliceOf("a", "a1", 80, "1", "2"), sliceOf("a", "a2", 80, "3"), sliceOf("a", "a3", 80, "4")}
	c := changes{update: []*discoveryv1.EndpointSlice{sliceOf("a", "a1", 80, "2", "3", "5")}, remove: have[1:2], create: []*discoveryv1.EndpointSlice{sliceOf("a", "", 80, "6")}}
	if plus, minus := c.endpoints(have); plus != 2 || minus != 1 {
		t.Errorf("%d more, %d less", plus, minus)
	}
	if plus, minus := (changes{}).endpoints(have); plus != 0 || minus != 0 {
		t.Errorf("nothing changes: %d more, %d less", plus, minus)
	}
}

func TestDistribution(t *testing.T) {
	for value, want := range map[string]string{"PreferSameZone": "PreferSameZone", "PreferClose": "PreferClose", "other": "", "": ""} {
		svc := &corev1.Service{}
		if value != "" {
			svc.Spec.TrafficDistribution = &value
		}
		if got := distributionOf(svc); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.AnnotationTopologyMode: "Auto"}}}
	svc.Spec.TrafficDistribution = new("PreferClose")
	if got := distributionOf(svc); got != "" {
		t.Errorf("the annotation comes before: %q", got)
	}
}
