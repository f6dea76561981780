package gatewayapi

import (
	"strings"
	"testing"

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
