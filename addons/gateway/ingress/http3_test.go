package ingress

import (
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"knarr/internal/references"
)

func TestHTTP3(t *testing.T) {
	c := newCluster(t)
	asked := func(ing *networkingv1.Ingress, value string) {
		ing.Annotations[references.HTTP3Annotation] = value
	}
	with := c.ingress("with", "", "a.example/ Prefix web:80", "plain.example/ Prefix web:80")
	with.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"a.example"}, SecretName: "tls"}}
	asked(with, "true")
	without := c.ingress("without", "", "x.b.example/ Prefix web:80")
	without.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"x.b.example"}, SecretName: "tls"}}
	asked(c.ingress("bad", "", "c.example/ Prefix web:80"), "yes please")
	asked(c.ingress("plain", "", "d.example/ Prefix web:80"), "true")
	out := c.compile()
	of := out.Listeners[1]
	if of.HTTP3Port != HTTPSPort || !slices.Equal(of.HTTP3Hosts, []string{"a.example"}) || !out.HTTP3() {
		t.Errorf("port %d, hosts %v", of.HTTP3Port, of.HTTP3Hosts)
	}
	for name, want := range map[string]string{"with": "", "bad": "is not followed", "plain": "no TLS"} {
		if got := out.faults(name); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
	delete(with.Annotations, references.HTTP3Annotation)
	if out := c.compile(); out.HTTP3() {
		t.Error("HTTP/3 is served that nobody asked for")
	}
}
