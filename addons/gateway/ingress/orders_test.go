package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"knarr/internal/references"
)

// A certificate is ordered for the hosts that are the namespace's own, and their
// challenges are answered.
func TestOrders(t *testing.T) {
	c := newCluster(t)
	older := c.ingress("older", "", "theirs.example/ Prefix web:80")
	older.Namespace = "other"
	ing := c.ingress("web", "", "a.example/ Prefix web:80", "b.example/ Prefix web:80", "theirs.example/ Prefix web:80")
	ing.Annotations[references.ACMEAnnotation] = "true"
	ing.Spec.TLS = []networkingv1.IngressTLS{
		{Hosts: []string{"b.example", "A.example", "theirs.example"}, SecretName: "web-tls"}, {Hosts: []string{"b.example"}}, {SecretName: "all-tls"}, {Hosts: []string{"c.example"}, SecretName: "none-tls"},
	}
	c.ingress("without", "", "d.example/ Prefix web:80").Annotations[references.ACMEAnnotation] = "true"
	c.ingress("bad", "", "e.example/ Prefix web:80").Annotations[references.ACMEAnnotation] = "letsencrypt"
	out := c.compile()
	var got []string
	for _, o := range out.Orders {
		got = append(got, fmt.Sprint(o.Secret, o.Hosts))
	}
	if want := []string{"default/web-tls [a.example b.example]", "default/all-tls [a.example b.example]", "default/none-tls []"}; !slices.Equal(got, want) {
		t.Errorf("orders %q, want %q", got, want)
	}
	if hosts := out.Listeners[0].ChallengeHosts; !slices.Contains(hosts, "b.example") || slices.Contains(hosts, "theirs.example") || slices.Contains(hosts, "c.example") {
		t.Errorf("challenges are answered for %q", hosts)
	}
	for name, want := range map[string]string{"web": "no certificate is ordered for host theirs.example", "without": "spec.tls names no Secret", "bad": "neither true nor false"} {
		if faults := out.faults(name); !strings.Contains(faults, want) || strings.Contains(faults, "web-tls") {
			t.Errorf("%s: %s", name, faults)
		}
	}
}
