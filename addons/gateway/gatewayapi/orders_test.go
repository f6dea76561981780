package gatewayapi

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/internal/references"
)

// A Gateway orders certificates for the hosts of its listeners that authorities can ask it for,
// and answers their challenges at port 80.
func TestOrders(t *testing.T) {
	encrypted := func(name, host, secret string) gw.Listener {
		l := listenerOf(name, gw.HTTPSProtocolType, 443, host)
		l.TLS = &gw.ListenerTLSConfig{CertificateRefs: []gw.SecretObjectReference{{Name: gw.ObjectName(secret)}}}
		return l
	}
	foreign := encrypted("foreign", "foreign.example", "x")
	foreign.TLS.CertificateRefs[0].Namespace = new(gw.Namespace("b"))
	passed := encrypted("passed", "passed.example", "x")
	passed.Protocol, passed.TLS.Mode = gw.TLSProtocolType, new(gw.TLSModePassthrough)
	passed.Port = 8443
	listeners := []gw.Listener{
		listenerOf("http", gw.HTTPProtocolType, 80, "*.example"), listenerOf("other", gw.HTTPProtocolType, 8080, "c.org"),
		encrypted("b", "B.example", "tls"), encrypted("a", "a.example", "tls"), encrypted("c", "c.org", "c"), encrypted("any", "", "any"), foreign, passed,
	}
	for _, asks := range []string{"true", ""} {
		w := newWorld()
		g := w.gateway("a/g", listeners...)
		g.Annotations = map[string]string{references.ACMEAnnotation: asks}
		w.Place = func(types.NamespacedName) *Place {
			return &Place{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: map[Port]uint16{{80, false}: 24000, {8080, false}: 24001}, Challenge: "thumb"}
		}
		out := Compile(w.Input)
		var got []string
		for _, o := range out.Orders {
			got = append(got, fmt.Sprintln(o.Secret, o.Hosts, strings.Contains(strings.Join(o.Faults, " "), "listener")))
		}
		var answered []string
		for _, l := range out.Listeners {
			answered = append(answered, fmt.Sprintln(l.PublicPort, l.Challenge, l.ChallengeHosts))
			if l.Challenge != "" && out.Of[l.Name] != g {
				t.Errorf("the Gateway of listener %s: %v", l.Name, out.Of[l.Name])
			}
		}
		want, challenges := "a/tls [a.example b.example] false\na/c [] true\na/any [] true\n", "80 thumb [a.example b.example]\n8080  []\n"
		if asks == "" {
			want, challenges = "", "80  []\n8080  []\n"
		}
		if strings.Join(got, "") != want || strings.Join(answered, "") != challenges {
			t.Errorf("annotation %q: orders %q, challenges %q, want %q and %q", asks, got, answered, want, challenges)
		}
	}
}
