package ingress

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// A host is the namespace's whose Ingress named it first: no other one takes a part of
// its requests by a path, a canary, an alias or by passing TLS on.
func TestHostsHaveOwners(t *testing.T) {
	for name, of := range map[string]struct{ annotations, path string }{
		"a path":      {"", "a.example/other Prefix web:80"},
		"exactly":     {"", "a.example/ Exact web:80"},
		"a canary":    {"canary=true\ncanary-weight=100", "a.example/ Prefix web:80"},
		"all of TLS":  {"ssl-passthrough=true", "a.example/other Prefix web:80"},
		"an alias":    {"server-alias=a.example", "b.example/ Prefix web:80"},
		"expressions": {"use-regex=true", "a.example/.* ImplementationSpecific web:80"},
	} {
		cl := newCluster(t)
		for _, s := range []string{"web", "canary"} {
			cl.service("other", s, cl.services[named("default", s)].Spec.Ports...)
		}
		cl.ingress("first", "", "a.example/ Prefix web:80")
		cl.ingress("second", of.annotations, of.path).Namespace = "other"
		out := cl.compile()
		for _, l := range out.Listeners {
			if l.Passthrough {
				t.Errorf("%s: connections to %s are passed on", name, l.Hostname)
			}
			for _, r := range l.Routes {
				if strings.Contains(r.Name, "second") && (len(r.Hosts) == 0 || r.Hosts[0] == "a.example") {
					t.Errorf("%s: %v has a route of the other namespace", name, r.Hosts)
				}
				for _, rule := range r.Rules {
					if len(rule.Backends) > 1 {
						t.Errorf("%s: requests are shared: %v", name, rule.Backends)
					}
				}
			}
		}
		var faults []string
		for _, f := range out.Verdicts[named("other", "second")].Faults {
			faults = append(faults, f.Text)
		}
		contains(t, strings.Join(faults, "; "), "is namespace default's")
	}
}

// What an Ingress' aliases make of its paths counts too.
func TestAliasesCount(t *testing.T) {
	cl := newCluster(t)
	var paths, aliases []string
	for range 100 {
		paths = append(paths, "a.example/p"+strings.Repeat("x", len(paths)+1)+" Prefix web:80")
		aliases = append(aliases, "x"+strings.Repeat("y", len(aliases)%50+1)+strings.Repeat("z", len(aliases)/50)+".example")
	}
	cl.ingress("i", "server-alias="+strings.Join(aliases, ","), paths...)
	rules := 0
	for _, r := range cl.compile().Listeners[0].Routes {
		rules += len(r.Rules)
	}
	if rules > maxPaths {
		t.Errorf("%d rules", rules)
	}
}

// An expression that is complete alone and not as a part of another is refused.
func TestIncompletePattern(t *testing.T) {
	for _, text := range []string{`a\Q`, `x)\Q`} {
		if _, err := NewParsed().Pattern(text); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// A namespace has its share of paths: those of its youngest Ingresses are not served, and
// another namespace's are.
func TestNamespacesShare(t *testing.T) {
	cl := newCluster(t)
	cl.service("other", "web", cl.services[named("default", "web")].Spec.Ports...)
	for i := range 6 {
		var paths []string
		for j := range 900 {
			paths = append(paths, fmt.Sprintf("h%d.example/%d Prefix web:80", i, j))
		}
		cl.ingress(fmt.Sprint("i", i), "", paths...)
	}
	cl.ingress("foreign", "", "f.example/ Prefix web:80").Namespace = "other"
	out, rules := cl.compile(), map[string]int{}
	for _, r := range out.Listeners[0].Routes {
		rules[r.Name] += len(r.Rules)
	}
	if rules["Ingress default/i0"] != 900 || rules["Ingress default/i5"] != MaxPathsEach-5*900 || rules["Ingress other/foreign"] != 1 {
		t.Errorf("served are %v", rules)
	}
	contains(t, out.faults("i5"), "the Ingresses of namespace default have more than 5000 paths")
	if got := out.faults("i4"); got != "" {
		t.Errorf("an older one: %s", got)
	}
}

// What leads to a Service of another namespace does so where a ReferenceGrant says so, and
// nothing leads to an address of pods.
func TestOthersServices(t *testing.T) {
	cl := newCluster(t)
	cl.service("foreign", "web", cl.services[named("default", "web")].Spec.Ports...)
	cl.ingress("auth", "auth-url=http://web.foreign.svc.cluster.local/", "a.example/ Prefix web:80")
	cl.ingress("mirror", "mirror-target=http://web.foreign.svc/", "b.example/ Prefix web:80")
	cl.ingress("pod", "auth-url=http://10.42.0.7:8080/", "c.example/ Prefix web:80")
	in := cl.input()
	in.Inside = []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}
	out := Compile(in)
	const why = "Service foreign/web is of another namespace; a ReferenceGrant there would allow it (from: group networking.k8s.io, kind Ingress, namespace default; to: group \"\", kind Service)"
	contains(t, out.faults("auth"), "every request is answered with 503: "+why)
	contains(t, out.faults("mirror"), "annotation mirror-target is not followed: "+why)
	contains(t, out.faults("pod"), "every request is answered with 503: 10.42.0.7 may not be asked")
	for _, r := range out.Listeners[0].Routes {
		if rule := r.Rules[0]; (rule.Status != 503) != (r.Hosts[0] == "b.example") || len(rule.Filters.Mirrors) > 0 || rule.Filters.Auth != nil {
			t.Errorf("%s: %+v", r.Hosts[0], rule)
		}
	}
	in.Granted = func(from string, to types.NamespacedName) bool { return from == "default" && to.Namespace == "foreign" }
	out = Compile(in)
	if got := out.faults("auth") + out.faults("mirror"); got != "" {
		t.Errorf("with a grant: %s", got)
	}
}

// A wildcard whose connections are passed on leaves the hosts below it that have rules, of
// whichever namespace, and what leads from www leaves another namespace's alias.
func TestWildcardsLeaveOthers(t *testing.T) {
	cl := newCluster(t)
	cl.service("other", "web", cl.services[named("default", "web")].Spec.Ports...)
	cl.ingress("wild", "ssl-passthrough=true", "*.example.com/ Prefix web:80").Namespace = "other"
	cl.ingress("exact", "", "a.example.com/ Prefix web:80", "*.b.example.com/ Prefix web:80", "elsewhere.example/ Prefix web:80")
	cl.ingress("passed", "ssl-passthrough=true", "p.example.com/ Prefix web:80")
	cl.ingress("alias", "server-alias=www.x.example", "y.example/z Prefix web:80")
	www := cl.ingress("www", "from-to-www-redirect=true", "x.example/ Prefix web:80")
	www.Namespace = "other"
	out := cl.compile()
	for _, l := range out.Listeners {
		if l.Name == HTTPSListener {
			if got := strings.Join(l.Own, " "); got != "*.b.example.com a.example.com" {
				t.Errorf("own are %s", got)
			}
		}
		for _, r := range l.Routes {
			if r.Name == RouteName(www) && r.Hosts[0] != "x.example" {
				t.Errorf("%v has a route of %s", r.Hosts, r.Name)
			}
		}
	}
	var faults []string
	for _, f := range out.Verdicts[named("other", "www")].Faults {
		faults = append(faults, f.Text)
	}
	contains(t, strings.Join(faults, "; "), "host www.x.example does not lead to x.example: it is namespace default's")
}
