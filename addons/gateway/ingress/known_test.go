package ingress

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"knarr/addons/gateway/route"
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
	hosts := []string{"h1.example", "h2.example", "www.h1.example", "a.example", "c.one", "d.two", "e.three", "f.four", "g.five", "h.six", "i.seven", "j.eight", "x.b.example", "*.b.example", ""}
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
			host := pick(hosts)
			for range 1 + random.IntN(3) {
				if random.IntN(3) == 0 {
					host = pick(hosts)
				}
				paths = append(paths, host+pick([]string{"/", "/a", "/a/b"})+" "+pick([]string{"Prefix", "Exact", "ImplementationSpecific"})+" "+pick([]string{"web:80", "canary:80", "none:80"}))
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
			before := map[*part]bool{}
			if parsed.known != nil {
				for _, p := range parsed.known.parts {
					before[p] = true
				}
			}
			again := Compile(in)
			for _, p := range parsed.known.parts {
				if before[p] {
					taken++
				}
			}
			if a, b := whole(again), whole(fresh); a != b {
				t.Fatalf("seed %d, step %d:\n%s\nwant\n%s", seed, step, a, b)
			}
		}
		members := 0
		for _, p := range parsed.known.parts {
			members += len(p.members)
		}
		if members != len(cl.all) || len(parsed.known.members) != members {
			t.Errorf("%d and %d Ingresses are held of %d", members, len(parsed.known.members), len(cl.all))
		}
	}
	if taken < 1000 {
		t.Errorf("only %d parts were taken over", taken)
	}
}

// Of a namespace that has more paths than it may the oldest Ingresses are served, in whatever
// order they come and go.
func TestCrowded(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 1))
	cl := newCluster(t)
	var waiting []*networkingv1.Ingress
	for i := range 9 {
		paths := make([]string, 700+random.IntN(300))
		for j := range paths {
			paths[j] = fmt.Sprintf("h%d.example/%d Exact web:80", i, j)
		}
		waiting = append(waiting, cl.ingress(fmt.Sprint("i", i), []string{"", "canary=true\ncanary-weight=20"}[i/8], paths...))
	}
	waiting[8].Spec.Rules[0].Host = "h1.example" // a canary of another one's
	cl.all = nil
	parsed, over, refused := NewParsed(), 0, 0
	for step := range 24 {
		if random.IntN(4) > 0 && len(waiting) > 0 || len(cl.all) == 0 {
			i := random.IntN(len(waiting))
			cl.all, waiting = append(cl.all, waiting[i]), slices.Delete(waiting, i, i+1)
		} else {
			i := random.IntN(len(cl.all))
			waiting, cl.all = append(waiting, cl.all[i]), slices.Delete(cl.all, i, i+1)
		}
		in := cl.input()
		fresh := Compile(in)
		in.Parsed = parsed
		again := Compile(in)
		if a, b := amounts(again), amounts(fresh); !maps.Equal(a, b) {
			t.Fatalf("step %d: %v is served, but of all at once %v", step, a, b)
		}
		if k := parsed.known; k != nil && len(k.crowded) > 0 {
			over++
		}
		for _, v := range again.Verdicts {
			refused += len(v.Faults)
		}
	}
	if over < 5 || over > 19 || refused == 0 {
		t.Errorf("there were too many paths in %d of 24 steps, of which %d sentences tell", over, refused)
	}
}

// amounts are how many rules each route has, and faults each Ingress.
func amounts(o *Output) map[string]int {
	all := map[string]int{}
	for _, l := range o.Listeners {
		for _, r := range l.Routes {
			all[r.Name+" "+strings.Join(r.Hosts, ",")] += len(r.Rules)
		}
	}
	for name, v := range o.Verdicts {
		all["faults of "+name.String()] = len(v.Faults)
	}
	return all
}

// whole is an Output without regard to the order of faults, and of what is for different hosts.
func whole(o *Output) string {
	var b strings.Builder
	for _, l := range slices.SortedFunc(slices.Values(o.Listeners), func(a, b route.Listener) int { return strings.Compare(a.Name, b.Name) }) {
		var routes []string
		for _, r := range l.Routes {
			routes = append(routes, describe(r))
		}
		slices.Sort(routes)
		l.HTTP3Hosts, l.ChallengeHosts = slices.Sorted(slices.Values(l.HTTP3Hosts)), slices.Sorted(slices.Values(l.ChallengeHosts))
		l.Routes = nil
		b.WriteString(describe(l) + strings.Join(routes, "\n") + "\n")
	}
	b.WriteString(describe(o.Backends) + describe(o.Targets))
	for _, order := range slices.SortedFunc(slices.Values(o.Orders), func(a, b Order) int {
		return strings.Compare(a.Secret.String()+a.Owner.GetName(), b.Secret.String()+b.Owner.GetName())
	}) {
		fmt.Fprintln(&b, order.Secret, order.Hosts, order.Owner.GetName())
	}
	var all []string
	for name, v := range o.Verdicts {
		for _, f := range v.Faults {
			all = append(all, fmt.Sprint("\n", name, " ", f.Warning, " ", f.Text))
		}
	}
	slices.Sort(all)
	return b.String() + strings.Join(all, "")
}
