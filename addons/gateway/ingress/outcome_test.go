package ingress

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"knarr/internal/references"
)

// What a compilation takes over from the one before is what it would have made anew, through
// many changes of Ingresses that share hosts, and of what they refer to.
func TestOutcomesHold(t *testing.T) {
	annotations := []string{
		"", "", "", "proxy-body-size=8m", "use-regex=true", "server-alias=h1.example,h9.example", "from-to-www-redirect=true", "ssl-passthrough=true",
		"canary=true\ncanary-weight=20", "auth-type=basic\nauth-secret=users", "mirror-target=http://web.auth.svc/", "custom-headers=headers",
		"default-backend=errors\ncustom-http-errors=404", "force-ssl-redirect=true", "no-such=1", "rewrite-target=/x", "upstream-vhost=$x", "app-root=/a",
	}
	hosts := []string{"h1.example", "h2.example", "www.h1.example", "a.example", "x.b.example", "*.b.example", ""}
	taken := 0
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		pick := func(of []string) string { return of[random.IntN(len(of))] }
		cl := newCluster(t)
		for _, namespace := range []string{"other", "auth"} {
			for _, name := range []string{"web", "canary", "errors"} {
				cl.service(namespace, name, cl.services[named("default", name)].Spec.Ports...)
			}
		}
		n := 0
		one := func() *networkingv1.Ingress {
			before := len(cl.all)
			var paths []string
			for range 1 + random.IntN(3) {
				paths = append(paths, pick(hosts)+pick([]string{"/", "/a", "/a/b"})+" "+pick([]string{"Prefix", "Exact", "ImplementationSpecific"})+" "+pick([]string{"web:80", "canary:80", "none:80"}))
			}
			n++
			ing := cl.ingress(fmt.Sprint("i", n), pick(annotations), paths...)
			cl.all = cl.all[:before]
			ing.Namespace = pick([]string{"default", "default", "other"})
			if random.IntN(3) == 0 {
				ing.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{pick(hosts)}, SecretName: pick([]string{"tls", "expired", "none"})}}
			}
			for _, annotation := range []string{references.HTTP3Annotation, references.ACMEAnnotation} {
				if random.IntN(5) == 0 {
					ing.Annotations[annotation] = "true"
				}
			}
			if random.IntN(8) == 0 {
				ing.Spec.DefaultBackend = ing.Spec.Rules[0].HTTP.Paths[0].Backend.DeepCopy()
			}
			return ing
		}
		parsed := NewParsed()
		for step := range 60 {
			switch {
			case len(cl.all) < 5 || random.IntN(3) == 0:
				cl.all = append(cl.all, one())
			case random.IntN(2) == 0:
				i := random.IntN(len(cl.all))
				cl.all = slices.Delete(cl.all, i, i+1)
			case random.IntN(2) == 0:
				changed := *cl.services[named("default", "web")]
				cl.services[named("default", "web")] = &changed
			default: // another state of the same Ingress
				i := random.IntN(len(cl.all))
				next := one()
				next.Namespace, next.Name, next.CreationTimestamp = cl.all[i].Namespace, cl.all[i].Name, cl.all[i].CreationTimestamp
				cl.all[i] = next
			}
			in := cl.input()
			fresh := Compile(in)
			in.Parsed = parsed
			for _, ing := range cl.all {
				if parsed.outcomes[ing] != nil {
					taken++
				}
			}
			again := Compile(in)
			if a, b := whole(again), whole(fresh); a != b {
				t.Fatalf("seed %d, step %d:\n%s\nwant\n%s", seed, step, a, b)
			}
		}
		if len(parsed.outcomes) > len(cl.all) {
			t.Errorf("%d outcomes are held for %d Ingresses", len(parsed.outcomes), len(cl.all))
		}
	}
	if taken < 1000 {
		t.Errorf("only %d outcomes were there to be taken over", taken)
	}
}

// whole is an Output without regard to the order of faults, and of routes that differ in more
// than their order.
func whole(o *Output) string {
	var b strings.Builder
	b.WriteString(describe(o.Listeners) + describe(o.Backends) + describe(o.Targets))
	var all []string
	for name, v := range o.Verdicts {
		for _, f := range v.Faults {
			all = append(all, fmt.Sprint("\n", name, " ", f.Warning, " ", f.Text))
		}
	}
	slices.Sort(all)
	return b.String() + strings.Join(all, "")
}
