package kubeproxy

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Which endpoints a node n1 in zone a uses.
func TestNear(t *testing.T) {
	for name, c := range map[string]struct {
		endpoints   string // "node condition zones/nodes", "; " between them
		near, local string
	}{
		"no hints":                       {"n1; n2", "1 2", "1"},
		"hints for zones":                {"n1 ready a; n2 ready b; n3 ready a", "1 3", "1"},
		"an endpoint without hints":      {"n1 ready a; n2", "1 2", "1"},
		"none for this zone":             {"n1 ready b; n2 ready c", "1 2", "1"},
		"the ending one has no hints":    {"n1 ready a; n2 ready b; n3 ending", "1", "1"},
		"hints for nodes":                {"n1 ready a/n1; n2 ready a/n2", "1", "1"},
		"none for this node, so zones":   {"n2 ready a/n2; n3 ready b/n3", "1", ""},
		"nodes, but not all":             {"n1 ready a/n1; n2 ready a", "1 2", "1"},
		"several zones":                  {"n2 ready b,a; n3 ready b", "1", ""},
		"local ones end, others serve":   {"n1 ending; n2 ready", "2", "1"},
		"all end":                        {"n1 ending; n2 ending", "1 2", "1"},
		"ended":                          {"n1 ended; n2 ready", "2", ""},
		"not ready":                      {"n1 unready; n2 ready", "2", ""},
		"all end, with hints for a zone": {"n1 ending b; n2 ending a", "1 2", "1"},
	} {
		s := slice("web", 8080)
		for i, e := range strings.Split(c.endpoints, "; ") {
			f := append(strings.Fields(e), "", "")
			ep := discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.1.0.", i+1)}, NodeName: &f[0]}
			switch f[1] {
			case "ending":
				ep.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
			case "ended":
				ep.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(true)}
			case "unready":
				ep.Conditions = discoveryv1.EndpointConditions{Ready: new(false)}
			}
			if zones, nodes, _ := strings.Cut(f[2], "/"); zones != "" {
				ep.Hints = &discoveryv1.EndpointHints{}
				for _, z := range strings.Split(zones, ",") {
					ep.Hints.ForZones = append(ep.Hints.ForZones, discoveryv1.ForZone{Name: z})
				}
				if nodes != "" {
					ep.Hints.ForNodes = []discoveryv1.ForNode{{Name: nodes}}
				}
			}
			s.Endpoints = append(s.Endpoints, ep)
		}
		all := backendsAt(portsOf(eps(s), false)[portKey{protocol: corev1.ProtocolTCP}], "n1")
		numbers := func(eps any) string {
			return strings.NewReplacer("10.1.0.", "", ":8080", "", "[", "", "]", "").Replace(fmt.Sprint(eps))
		}
		if got := numbers(near(all, host{name: "n1", zone: "a"})); got != c.near {
			t.Errorf("%s: near are %q, want %q", name, got, c.near)
		}
		if got := numbers(here(all)); got != c.local {
			t.Errorf("%s: here are %q, want %q", name, got, c.local)
		}
	}
}
