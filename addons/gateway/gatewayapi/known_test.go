package gatewayapi

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/ingress"
	"knarr/addons/gateway/route"
)

// What a compilation takes over from the one before is what it would have made anew, through
// many changes of routes and of all that they depend on.
func TestKnown(t *testing.T) {
	taken := 0
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		pick := func(of ...string) string { return of[random.IntN(len(of))] }
		w := newWorld()
		labels := map[string]map[string]string{"a": {"team": "x"}, "b": {"team": "y"}}
		w.Namespace = func(name string) map[string]string { return labels[name] }
		g := w.gateway("a/g", listenerOf("http", gw.HTTPProtocolType, 80, ""), listenerOf("wild", gw.HTTPProtocolType, 80, "*.wild.example"), listenerOf("udp", gw.UDPProtocolType, 53, ""))
		g.Spec.Listeners[0].AllowedRoutes = &gw.AllowedRoutes{Namespaces: &gw.RouteNamespaces{From: new(gw.NamespacesFromAll)}}
		g.Spec.Listeners[1].AllowedRoutes = &gw.AllowedRoutes{Namespaces: &gw.RouteNamespaces{From: new(gw.NamespacesFromSelector), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "y"}}}}
		w.gateway("b/g", listenerOf("http", gw.HTTPProtocolType, 80, ""))
		n := 0
		one := func() {
			n++
			r := w.route(pick("a/r", "b/r")+fmt.Sprint(n), pick("a/g", "b/g", "a/g#http", "a/none"), pick("", "x.example", "y.wild.example", "*.wild.example"), pick("a/web", "b/web", "a/none"))
			r.UID = types.UID(fmt.Sprint(n))
			if random.IntN(3) == 0 {
				r.Spec.ParentRefs = append(r.Spec.ParentRefs, parentOf(pick("a/g#wild", "b/g")))
			}
		}
		known, parsed := NewKnown(), ingress.NewParsed()
		for step := range 60 {
			switch i := random.IntN(max(len(w.HTTPRoutes), 1)); {
			case len(w.HTTPRoutes) < 5 || random.IntN(4) == 0:
				one()
			case random.IntN(4) == 0:
				w.HTTPRoutes = slices.Delete(slices.Clone(w.HTTPRoutes), i, i+1)
			case random.IntN(4) == 0: // another wish
				changed := w.HTTPRoutes[i].DeepCopy()
				changed.Generation++
				changed.Spec.Hostnames = []gw.Hostname{gw.Hostname(pick("z.example", "z.wild.example"))}
				w.HTTPRoutes = slices.Clone(w.HTTPRoutes)
				w.HTTPRoutes[i] = changed
			case random.IntN(4) == 0: // another status
				changed := w.HTTPRoutes[i].DeepCopy()
				changed.Status.Parents = make([]gw.RouteParentStatus, random.IntN(3))
				w.HTTPRoutes = slices.Clone(w.HTTPRoutes)
				w.HTTPRoutes[i] = changed
			case random.IntN(4) == 0:
				name := types.NamespacedName{Namespace: pick("a", "b"), Name: "web"}
				if w.services[name] == nil {
					w.services[name] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
				} else {
					delete(w.services, name)
				}
			case random.IntN(4) == 0:
				labels[pick("a", "b")] = map[string]string{"team": pick("x", "y")}
			case random.IntN(4) == 0:
				grant := &gw.ReferenceGrant{ObjectMeta: w.meta(pick("a/g", "b/g") + fmt.Sprint(step))}
				grant.Spec = gw.ReferenceGrantSpec{From: []gw.ReferenceGrantFrom{{Group: gw.GroupName, Kind: "HTTPRoute", Namespace: gw.Namespace(pick("a", "b"))}}, To: []gw.ReferenceGrantTo{{Kind: "Service"}}}
				if w.Grants = append(slices.Clone(w.Grants), grant); random.IntN(2) == 0 {
					w.Grants = nil
				}
			case random.IntN(4) == 0:
				policy := &gw.BackendTLSPolicy{ObjectMeta: w.meta("a/p" + fmt.Sprint(step))}
				policy.Spec.TargetRefs = []gw.LocalPolicyTargetReferenceWithSectionName{{LocalPolicyTargetReference: gw.LocalPolicyTargetReference{Kind: "Service", Name: "web"}}}
				policy.Spec.Validation.WellKnownCACertificates = new(gw.WellKnownCACertificatesType(pick("System", "None")))
				w.Policies = []*gw.BackendTLSPolicy{policy}
			}
			if w.UDPRoutes == nil && random.IntN(8) == 0 {
				w.UDPRoutes = []*gw.UDPRoute{{ObjectMeta: w.meta("a/u"), Spec: gw.UDPRouteSpec{CommonRouteSpec: gw.CommonRouteSpec{ParentRefs: []gw.ParentReference{parentOf("a/g#udp")}}, Rules: []gw.UDPRouteRule{{BackendRefs: []gw.BackendRef{{BackendObjectReference: backendOf("a/web", 53)}}}}}}}
			}
			w.Known, w.Parsed = nil, ingress.NewParsed()
			fresh := Compile(w.Input)
			before := map[*outcome]bool{}
			for _, of := range known.routes {
				for _, o := range of.all {
					before[o] = true
				}
			}
			w.Known, w.Parsed = known, parsed
			again := Compile(w.Input)
			held := 0
			for _, of := range known.routes {
				for _, o := range of.all {
					if held++; before[o] {
						taken++
					}
				}
			}
			if held != len(w.HTTPRoutes)+len(w.UDPRoutes) {
				t.Fatalf("%d outcomes are held", held)
			}
			if !reflect.DeepEqual(again.Statuses, fresh.Statuses) || !reflect.DeepEqual(again.Backends, fresh.Backends) || !reflect.DeepEqual(again.Targets, fresh.Targets) {
				t.Fatalf("seed %d, step %d: %+v\nwant %+v", seed, step, again, fresh)
			}
			if a, b := listened(again), listened(fresh); a != b {
				t.Fatalf("seed %d, step %d:\n%s\nwant\n%s", seed, step, a, b)
			}
		}
	}
	if taken < 2000 {
		t.Errorf("only %d outcomes were taken over", taken)
	}
}

// listened is what listeners have.
func listened(o *Output) string {
	var b strings.Builder
	for _, l := range o.Listeners {
		fmt.Fprintf(&b, "%s %s %d %s\n", l.Name, l.Protocol, l.Port, l.Hostname)
		for _, r := range l.Routes {
			fmt.Fprintf(&b, "  %+v\n", route.Route{Name: r.Name, Created: r.Created, Hosts: r.Hosts, Rules: r.Rules})
		}
		fmt.Fprintf(&b, "  %+v\n", l.Streams)
	}
	return b.String()
}
