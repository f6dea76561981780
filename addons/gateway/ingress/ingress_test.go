package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"knarr/addons/gateway/route"
	"knarr/internal/references"
)

func contains(t *testing.T, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("%s\nis not in\n%s", want, got)
	}
}

// Nothing is listened at while there is no Ingress.
func TestNothing(t *testing.T) {
	if out := newCluster(t).compile(); len(out.Listeners) != 0 || len(out.Backends) != 0 {
		t.Errorf("%s", describe(out))
	}
}

func TestPaths(t *testing.T) {
	cl := newCluster(t)
	cl.ingress("i", "", "a.example/x Exact web:80", "A.example/y Prefix web:admin", "*.w.example/z ImplementationSpecific web:80", "/ Prefix other:http", "h.example/ Prefix h2:80")
	out := cl.compile()
	got := describe(out.Listeners[0].Routes)
	contains(t, got, "{Name:Ingress default/i Hosts:[a.example] SingleLabel:true Rules:[{Name:/x Matches:[{PathType:Exact Path:/x}] Backends:[{Backend:default/web:80 Weight:1}]} {Name:/y Matches:[{PathType:Prefix Path:/y}] Backends:[{Backend:default/web:9000 Weight:1}]}]}")
	contains(t, got, "Hosts:[*.w.example] SingleLabel:true Rules:[{Name:/z Matches:[{PathType:Prefix Path:/z}]")
	contains(t, got, "{Name:Ingress default/i SingleLabel:true Rules:[{Name:/ Matches:[{PathType:Prefix Path:/}] Backends:[{Backend:default/other:80 Weight:1}]}]}")
	contains(t, describe(out.Backends), "default/h2:80 H2C={Protocol:H2C}")
	if target := out.Targets["default/web:9000"]; target != (Target{Service: named("default", "web"), Port: "admin"}) {
		t.Errorf("%+v", target)
	}
	if got := out.faults("i"); got != "" {
		t.Error(got)
	}
}

// Expressions are anchored at their begin, and blind to case, as in ingress-nginx.
func TestExpressions(t *testing.T) {
	for _, c := range []struct {
		path, kind, annotations string
		yes, no                 string // paths, separated by blanks
	}{
		{"/a(/|$)(.*)", "ImplementationSpecific", "rewrite-target=/$2", "/a /a/ /A/b/c", "/ab /b/a"},
		{"/a(/|$)(.*)", "Prefix", "rewrite-target=/$2", "/a /a/b", "/ab"},
		{"/a", "Prefix", "rewrite-target=/", "/a /a/ /A/b", "/ab"},
		{"/a/", "Prefix", "rewrite-target=/", "/a /a/b", "/ab"},
		{"/", "Prefix", "rewrite-target=/", "/ /x", ""},
		{"/a", "Exact", "rewrite-target=/", "/a /A", "/a/ /ab"},
		{"/a.b", "Prefix", "rewrite-target=/", "/a.b", "/axb"},
		{"/a.b", "ImplementationSpecific", "use-regex=true", "/a.b /axb /axbc", "/ab"},
		{"/v[0-9]+/x", "Exact", "use-regex=true", "/v1/x /V22/x", "/v1/x/y"},
		{"/a|/b", "Exact", "use-regex=true", "/a /b", "/ax /xb"},
	} {
		cl := newCluster(t)
		ing := cl.ingress("i", c.annotations, "a.example/ Prefix web:80")
		p := &ing.Spec.Rules[0].HTTP.Paths[0]
		p.Path, p.PathType = c.path, new(networkingv1.PathType(c.kind))
		out := cl.compile()
		m := out.Listeners[0].Routes[0].Rules[0].Matches[0]
		if m.PathType != route.PathRegexp {
			t.Fatalf("%s: %s", c.path, describe(m))
		}
		for _, path := range strings.Fields(c.yes) {
			if !m.Pattern.MatchString(path) {
				t.Errorf("%s %s (%s) does not match %s", c.kind, c.path, m.Pattern, path)
			}
		}
		for _, path := range strings.Fields(c.no) {
			if m.Pattern.MatchString(path) {
				t.Errorf("%s %s (%s) matches %s", c.kind, c.path, m.Pattern, path)
			}
		}
	}
}

// What cannot be served is told of, and spoils nothing else.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		annotations, path string
		change            func(*networkingv1.IngressBackend)
		fault             string
	}{
		{"", "/x Prefix none:80", nil, `path "/x" is answered with 503: Service "default/none" was not found`},
		{"", "/x Prefix web:81", nil, `path "/x" is answered with 503: Service "default/web" has no TCP port "81"`},
		{"", "/x Prefix web:nope", nil, `path "/x" is answered with 503: Service "default/web" has no TCP port "nope"`},
		{"", "/x Prefix outside:80", nil, `path "/x" is answered with 503: Service "default/outside" is of type ExternalName, which is not served`},
		{"", "/x Prefix web:80", func(b *networkingv1.IngressBackend) {
			*b = networkingv1.IngressBackend{Resource: &corev1.TypedLocalObjectReference{Kind: "StorageBucket"}}
		}, `path "/x" is answered with 503: its backend is a StorageBucket: only Services are served`},
		{"use-regex=true", "/x( Prefix web:80", nil, "path \"/x(\" is not served: error parsing regexp: missing closing ): `/x(`"},
		{"use-regex=true", "/x(?=y) Prefix web:80", nil, "path \"/x(?=y)\" is not served: error parsing regexp: invalid or unsupported Perl syntax: `(?=`"},
		{"use-regex=true", "/(a{1000}) Prefix web:80", nil, `path "/(a{1000})" is not served: the expression has too many steps`},
		{"use-regex=true", "/" + strings.Repeat("a", 1100) + " Prefix web:80", nil, "the expression is longer than 1024 bytes"},
		{"", "/" + strings.Repeat("a", 2100) + " Prefix web:80", nil, "the path is longer than 2048 bytes"},
	} {
		cl := newCluster(t)
		ing := cl.ingress("i", c.annotations, c.path, "/fine Prefix web:80")
		if c.change != nil {
			c.change(&ing.Spec.Rules[0].HTTP.Paths[0].Backend)
		}
		out := cl.compile()
		contains(t, out.faults("i"), c.fault)
		contains(t, describe(out.Listeners), "Name:/fine")
	}
}

// The older of two Ingresses keeps a host's path.
func TestOlderWins(t *testing.T) {
	cl := newCluster(t)
	cl.ingress("old", "server-alias=c.example", "a.example/x Prefix web:80", "b.example/ Prefix web:80")
	cl.ingress("young", "", "a.example/x/ Prefix other:80", "a.example/y Prefix other:80", "c.example/ Prefix other:80")
	cl.all[0], cl.all[1] = cl.all[1], cl.all[0] // their order counts for nothing
	out := cl.compile()
	if got, want := out.faults("young"), "host a.example, path /x (Prefix) is served by Ingress default/old, which is older\nhost c.example, path / (Prefix) is served by Ingress default/old, which is older"; got != want {
		t.Errorf("%s", got)
	}
	if got := out.faults("old"); got != "" {
		t.Error(got)
	}
	got := describe(out.Listeners[0].Routes)
	contains(t, got, "{Name:Ingress default/young Hosts:[a.example] SingleLabel:true Rules:[{Name:/y ")
	if strings.Count(got, "default/other:80") != 1 {
		t.Errorf("%s", got)
	}
}

// The default backend gets what no rule covers, of the Ingress' own hosts and of all others.
func TestDefaultBackend(t *testing.T) {
	cl := newCluster(t)
	backend := func(service string) *networkingv1.IngressBackend {
		return &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: 80}}}
	}
	cl.ingress("first", "", "a.example/x Prefix web:80").Spec.DefaultBackend = backend("errors")
	ing := cl.ingress("second", "")
	ing.Spec.DefaultBackend = backend("other")
	ing = cl.ingress("third", "", "d.example/ Prefix web:80")
	ing.Spec.Rules[0].HTTP, ing.Spec.DefaultBackend = nil, backend("other")
	out := cl.compile()
	got := describe(out.Listeners[0].Routes)
	contains(t, got, "Hosts:[a.example] SingleLabel:true Rules:[{Name:/x Matches:[{PathType:Prefix Path:/x}] Backends:[{Backend:default/web:80 Weight:1}]} {Matches:[{PathType:Prefix Path:/}] Backends:[{Backend:default/errors:80 Weight:1}]}]}")
	contains(t, got, "{Name:Ingress default/first SingleLabel:true Rules:[{Matches:[{PathType:Prefix Path:/}] Backends:[{Backend:default/errors:80 Weight:1}]}]}")
	contains(t, got, "Hosts:[d.example] SingleLabel:true Rules:[{Matches:[{PathType:Prefix Path:/}] Backends:[{Backend:default/other:80 Weight:1}]}]}")
	contains(t, out.faults("second"), "host *, path / (Prefix) is served by Ingress default/first, which is older")
}

func TestCertificates(t *testing.T) {
	cl := newCluster(t)
	tls := func(ing *networkingv1.Ingress, entries ...networkingv1.IngressTLS) { ing.Spec.TLS = entries }
	tls(cl.ingress("named", "", "a.example/ Prefix web:80", "x.b.example/ Prefix web:80", "plain.example/ Prefix web:80"), networkingv1.IngressTLS{Hosts: []string{"a.example"}, SecretName: "tls"})
	tls(cl.ingress("thief", "", "a.example/other Prefix other:80", "c.example/ Prefix web:80"), networkingv1.IngressTLS{Hosts: []string{"c.example"}, SecretName: "tls"})
	tls(cl.ingress("late", "", "d.example/ Prefix web:80"), networkingv1.IngressTLS{Hosts: []string{"d.example"}, SecretName: "none"})
	tls(cl.ingress("bad", "", "e.example/ Prefix web:80"), networkingv1.IngressTLS{Hosts: []string{"e.example"}, SecretName: "users"})
	out := cl.compile()
	https := out.Listeners[1]
	if got, want := describe(https.Names), "[a.example=cert of a.example *.b.example c.example=cert of default d.example=cert of default e.example=cert of default x.b.example=cert of a.example *.b.example]"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := describe(https.Certificates); got != "[cert of default]" {
		t.Error(got)
	}
	contains(t, out.faults("thief"), "the certificate for host c.example is not of that name, so that the default certificate is shown: x509")
	contains(t, out.faults("late"), `Secret "none" for TLS was not found, so that the default certificate is shown`)
	contains(t, out.faults("bad"), `Secret "users" for TLS cannot be used, so that the default certificate is shown: it has no tls.crt or no tls.key`)
	got := describe(out.Listeners[0].Routes)
	contains(t, got, "{Name:Ingress default/named Hosts:[a.example] SingleLabel:true Rules:[{Name:/ Matches:[{PathType:Prefix Path:/}] Filters:{Redirect:{Scheme:https Code:308 OnlyPlain:true}}")
	contains(t, got, "Hosts:[plain.example] SingleLabel:true Rules:[{Name:/ Matches:[{PathType:Prefix Path:/}] Backends")

	cl = newCluster(t)
	tls(cl.ingress("i", "", "a.example/.well-known/acme-challenge/x Exact web:80"), networkingv1.IngressTLS{Hosts: []string{"a.example"}, SecretName: "expired"})
	out = cl.compile()
	contains(t, out.faults("i"), `Secret "expired" for TLS: its certificate has expired on 2026-10-31T23:59:00Z`)
	contains(t, describe(out.Listeners[0].Routes), "Path:/.well-known/acme-challenge/x}] Backends")
}

// One Ingress may ask for much, and gets a bounded part of it.
func TestBounds(t *testing.T) {
	cl := newCluster(t)
	ing := cl.ingress("i", "")
	http := &networkingv1.HTTPIngressRuleValue{}
	for i := range maxPaths + 5 {
		http.Paths = append(http.Paths, networkingv1.HTTPIngressPath{Path: fmt.Sprintf("/%d", i), Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
			Name: fmt.Sprintf("none-%d", i), Port: networkingv1.ServiceBackendPort{Number: 80}}}})
	}
	ing.Spec.Rules = []networkingv1.IngressRule{{Host: "a.example", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: http}}}
	out := cl.compile()
	if got := len(out.Listeners[0].Routes[0].Rules); got != maxPaths {
		t.Errorf("%d rules", got)
	}
	if got := len(out.Verdicts[named("default", "i")].Faults); got != maxFaults+1 {
		t.Errorf("%d faults", got)
	}
	contains(t, out.faults("i"), "there is more that is not served; mend this first")
}

// What is parsed is kept while it is used, and forgotten once there is more than that.
func TestParsed(t *testing.T) {
	p := NewParsed()
	for i := range 1000 {
		for _, text := range []string{"a", fmt.Sprint("b", i)} {
			if _, err := p.Pattern(text); err != nil {
				t.Fatal(err)
			}
		}
		held := p.Uses()[:1]
		if i%2 == 0 {
			_, err := p.Pattern("a")
			held = p.Uses()
			if err != nil || len(held) != 1 {
				t.Fatalf("%d uses, %v", len(held), err)
			}
		}
		p.Sweep(slices.Values(held))
		if n := len(p.patterns); n > 70 || p.patterns["a"] == nil {
			t.Fatalf("%d patterns, the one that is used: %v", n, p.patterns["a"])
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	cl := newCluster(b)
	for i := range 5000 {
		cl.ingress(fmt.Sprint("i", i), "proxy-body-size=8m", fmt.Sprintf("h%d.b.example/ Prefix web:80", i)).Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{fmt.Sprintf("h%d.b.example", i)}, SecretName: "tls"}}
	}
	b.ReportAllocs()
	for b.Loop() {
		cl.compile()
	}
}

// A Secret that is not read because there are too many is no missing one.
func TestLeft(t *testing.T) {
	cl := newCluster(t)
	in := cl.input()
	tls := cl.ingress("tls", "", "a.example/ Prefix web:80")
	tls.Spec.TLS = []networkingv1.IngressTLS{{SecretName: "many"}}
	auth := cl.ingress("auth", "auth-type=basic\nauth-secret=many", "b.example/ Prefix web:80")
	in.Ingresses = []*networkingv1.Ingress{tls, auth}
	in.Left = map[references.Object]string{{Resource: "secrets", Namespace: "default", Name: "many"}: "there are too many"}
	out := Compile(in)
	contains(t, out.faults("tls"), `Secret "many" for TLS is not read (there are too many), so that the default certificate is shown`)
	contains(t, out.faults("auth"), `every request is answered with 503: Secret "many" is not read (there are too many)`)
}
