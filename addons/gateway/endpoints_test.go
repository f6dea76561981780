package gateway

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Hints count where all endpoints that are ready have some and one is for this node or zone,
// as with kube-proxy.
func TestHints(t *testing.T) {
	on := host{"n1", "z1"}
	for _, c := range []struct{ name, endpoints, want string }{
		{"no hints", "1 2", ""},
		{"for zones", "1:z1 2:z2 3:z1,z2", "1 3"},
		{"one without", "1:z1 2", ""},
		{"none for this zone", "1:z2 2:z3", ""},
		{"one that ends does not count", "1:z1 2:z2 3!", "1"},
		{"for nodes before zones", "1:n1,z1 2:n2,z1", "1"},
		{"for other nodes: zones", "1:n2,z1 2:n2,z2", "1"},
		{"for nodes, one without: zones", "1:n1,z1 2:z1", "1 2"},
	} {
		s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(80))}}}
		for _, e := range strings.Fields(c.endpoints) {
			last, list, _ := strings.Cut(e, ":")
			last, ends := strings.CutSuffix(last, "!")
			endpoint := discoveryv1.Endpoint{Addresses: []string{"10.0.0." + last}, Conditions: discoveryv1.EndpointConditions{Ready: new(!ends), Serving: new(true), Terminating: new(ends)}}
			for _, h := range strings.Split(list, ",") {
				switch {
				case h == "":
					continue
				case endpoint.Hints == nil:
					endpoint.Hints = &discoveryv1.EndpointHints{}
				}
				if h[0] == 'n' {
					endpoint.Hints.ForNodes = append(endpoint.Hints.ForNodes, discoveryv1.ForNode{Name: h})
				} else {
					endpoint.Hints.ForZones = append(endpoint.Hints.ForZones, discoveryv1.ForZone{Name: h})
				}
			}
			s.Endpoints = append(s.Endpoints, endpoint)
		}
		var got []string
		for _, e := range endpointsOf([]*discoveryv1.EndpointSlice{s}, discoveryv1.AddressTypeIPv4, "", corev1.ProtocolTCP, on) {
			if e.Hinted {
				got = append(got, strings.TrimPrefix(e.Address.Addr().String(), "10.0.0."))
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", c.name, got, c.want)
		}
	}
}
