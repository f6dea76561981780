package gatewayapi

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"
)

// A listener whose port finds no place on the nodes says so, and the others are served.
func TestNoPortLeft(t *testing.T) {
	w := newWorld()
	w.gateway("a/g", listenerOf("http", gw.HTTPProtocolType, 80, ""), listenerOf("more", gw.HTTPProtocolType, 443, ""))
	w.gateway("a/none", listenerOf("http", gw.HTTPProtocolType, 80, ""))
	w.route("a/r", "a/g#more", "", "a/web")
	g, none := types.NamespacedName{Namespace: "a", Name: "g"}, types.NamespacedName{Namespace: "a", Name: "none"}
	w.Reserve = func(all map[types.NamespacedName][]Port) map[GatewayPort]string {
		return map[GatewayPort]string{{g, Port{Number: 443}}: "there is none", {none, Port{Number: 80}}: "there is none"}
	}
	out := Compile(w.Input)
	if len(out.Ports[g]) != 1 || len(out.Ports) != 1 {
		t.Errorf("ports are %v", out.Ports)
	}
	status := out.Statuses.Gateways[g]
	for at, want := range map[int]string{0: "Accepted=True(Accepted)", 1: "Accepted=False(PortUnavailable)"} {
		if got := conditions(status.Listeners[at].Conditions); !strings.Contains(got, want) {
			t.Errorf("listener %d: %s, want %s", at, got, want)
		}
	}
	if got, want := conditions(status.Conditions), "Accepted=True(ListenersNotValid)"; !strings.Contains(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := conditions(out.Statuses.Gateways[none].Conditions), "Accepted=False(ListenersNotValid)"; !strings.Contains(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
	for _, l := range out.Listeners {
		if l.PublicPort == 443 || strings.Contains(l.Name, "none") {
			t.Errorf("%s is served", l.Name)
		}
	}
}

// A route at which a compilation fails is refused, alone; and an expression that ends a
// bracket that is not its own is none.
func TestOneRouteFails(t *testing.T) {
	w := newWorld()
	w.gateway("a/g", listenerOf("http", gw.HTTPProtocolType, 80, ""))
	w.route("a/bad", "a/g", "bad.example", "a/broken")
	w.route("a/good", "a/g", "good.example", "a/web")
	find := w.Service
	w.Service = func(name types.NamespacedName) *corev1.Service {
		if name.Name == "broken" {
			panic("nobody has thought of this")
		}
		return find(name)
	}
	grpc := &gw.GRPCRoute{ObjectMeta: w.meta("a/grpc")}
	grpc.Spec.ParentRefs = []gw.ParentReference{parentOf("a/g")}
	grpc.Spec.Rules = []gw.GRPCRouteRule{{Matches: []gw.GRPCRouteMatch{{Method: &gw.GRPCMethodMatch{Type: new(gw.GRPCMethodMatchRegularExpression), Service: new("a)|(?:.*")}}}}}
	w.GRPCRoutes = append(w.GRPCRoutes, grpc)
	out := Compile(w.Input)
	if got, want := out.route("HTTPRoute", "a/bad"), "Accepted=False(UnsupportedValue) ResolvedRefs=True(ResolvedRefs)"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := out.route("HTTPRoute", "a/good"); got != good {
		t.Errorf("%s, want %s", got, good)
	}
	if got, want := out.route("GRPCRoute", "a/grpc"), "Accepted=False(UnsupportedValue) ResolvedRefs=True(ResolvedRefs)"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := out.served(), `gateway a/g/http HTTP:24001 for 80 "" [good.example]->a/web:80*1`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The routes of a namespace have their share of matches, the oldest first.
func TestRoutesShare(t *testing.T) {
	w := newWorld()
	all := gw.NamespacesFromAll
	l := listenerOf("http", gw.HTTPProtocolType, 80, "")
	l.AllowedRoutes = &gw.AllowedRoutes{Namespaces: &gw.RouteNamespaces{From: &all}}
	w.gateway("a/g", l)
	for i := range 6 {
		r := w.route(fmt.Sprint("a/r", i), "a/g", "", "a/web")
		for j := range 16 {
			r.Spec.Hostnames = append(r.Spec.Hostnames, gw.Hostname(fmt.Sprintf("h%d-%d.example", i, j)))
		}
		r.Spec.Rules[0].Matches = make([]gw.HTTPRouteMatch, 60)
	}
	w.route("b/r", "a/g", "b.example", "b/web")
	for _, r := range w.HTTPRoutes { // by a second parent they count no second time
		r.Spec.ParentRefs = append(r.Spec.ParentRefs, parentOf("a/g#http"))
	}
	refused := "Accepted=False(UnsupportedValue) ResolvedRefs=True(ResolvedRefs)"
	out := Compile(w.Input)
	for name, want := range map[string]string{"a/r0": good + "; " + good, "a/r4": good + "; " + good, "a/r5": refused + "; " + refused, "b/r": good + "; " + good} {
		if got := out.route("HTTPRoute", name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got := len(out.Listeners[0].Routes); got != 12 {
		t.Errorf("%d routes are served", got)
	}
}
