package gatewayapi

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/ingress"
)

var now = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// A world is what tests compile.
type world struct {
	Input
	services map[types.NamespacedName]*corev1.Service
	made     int
}

func newWorld() *world {
	w := &world{services: map[types.NamespacedName]*corev1.Service{}}
	w.Input = Input{
		Classes:   []*gw.GatewayClass{{ObjectMeta: metav1.ObjectMeta{Name: "knarr"}, Spec: gw.GatewayClassSpec{ControllerName: Controller}}},
		Namespace: func(name string) map[string]string { return map[string]string{"kubernetes.io/metadata.name": name} },
		Service:   func(n types.NamespacedName) *corev1.Service { return w.services[n] },
		Secret:    func(types.NamespacedName) *corev1.Secret { return nil },
		ConfigMap: func(types.NamespacedName) *corev1.ConfigMap { return nil },
		Place: func(types.NamespacedName) *Place {
			return &Place{
				Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Public: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}},
				Ports: map[Port]uint16{{Number: 80}: 24001, {Number: 443}: 24002, {Number: 53, UDP: true}: 24003, {Number: 53}: 24004},
			}
		},
		Parsed: ingress.NewParsed(), Now: now,
	}
	for _, name := range []string{"a/web", "b/web"} {
		ns, n, _ := strings.Cut(name, "/")
		w.services[types.NamespacedName{Namespace: ns, Name: n}] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: n}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}}}}
	}
	return w
}

// meta is that of an object, each younger than the one before.
func (w *world) meta(name string) metav1.ObjectMeta {
	ns, n, _ := strings.Cut(name, "/")
	w.made++
	return metav1.ObjectMeta{Namespace: ns, Name: n, Generation: 3, CreationTimestamp: metav1.NewTime(now.Add(time.Duration(w.made) * time.Second))}
}

func (w *world) gateway(name string, listeners ...gw.Listener) *gw.Gateway {
	g := &gw.Gateway{ObjectMeta: w.meta(name), Spec: gw.GatewaySpec{GatewayClassName: "knarr", Listeners: listeners}}
	w.Gateways = append(w.Gateways, g)
	return g
}

func listenerOf(name string, protocol gw.ProtocolType, port int32, host string) gw.Listener {
	l := gw.Listener{Name: gw.SectionName(name), Protocol: protocol, Port: port}
	if host != "" {
		l.Hostname = new(gw.Hostname(host))
	}
	return l
}

// route adds an HTTPRoute that leads a host to a Service, by the parent of that name.
func (w *world) route(name, parent, host, service string) *gw.HTTPRoute {
	r := &gw.HTTPRoute{ObjectMeta: w.meta(name)}
	r.Spec.ParentRefs = []gw.ParentReference{parentOf(parent)}
	if host != "" {
		r.Spec.Hostnames = []gw.Hostname{gw.Hostname(host)}
	}
	r.Spec.Rules = []gw.HTTPRouteRule{{BackendRefs: []gw.HTTPBackendRef{{BackendRef: gw.BackendRef{BackendObjectReference: backendOf(service, 80)}}}}}
	w.HTTPRoutes = append(w.HTTPRoutes, r)
	return r
}

func parentOf(name string) gw.ParentReference {
	ns, n, _ := strings.Cut(name, "/")
	n, section, _ := strings.Cut(n, "#")
	p := gw.ParentReference{Namespace: new(gw.Namespace(ns)), Name: gw.ObjectName(n)}
	if section != "" {
		p.SectionName = new(gw.SectionName(section))
	}
	return p
}

func backendOf(name string, port int32) gw.BackendObjectReference {
	ns, n, _ := strings.Cut(name, "/")
	return gw.BackendObjectReference{Namespace: new(gw.Namespace(ns)), Name: gw.ObjectName(n), Port: &port}
}

// conditions are those that do not hold, and those of them that are good to hold if they do.
func conditions(all []metav1.Condition) string {
	var text []string
	for _, c := range all {
		if c.ObservedGeneration != 3 {
			text = append(text, c.Type+" observed another generation")
		}
		text = append(text, fmt.Sprintf("%s=%s(%s)", c.Type, c.Status, c.Reason))
	}
	slices.Sort(text)
	return strings.Join(text, " ")
}

func (o *Output) route(kind, name string) string {
	ns, n, _ := strings.Cut(name, "/")
	var text []string
	for _, p := range o.Statuses.Routes[kind][types.NamespacedName{Namespace: ns, Name: n}] {
		text = append(text, conditions(p.Conditions))
	}
	return strings.Join(text, "; ")
}

// served says which hosts lead where at each listener.
func (o *Output) served() string {
	var lines []string
	for _, l := range o.Listeners {
		line := fmt.Sprintf("%s %s:%d for %d %q", l.Name, l.Protocol, l.Port, l.PublicPort, l.Hostname)
		for _, r := range l.Routes {
			for _, rule := range r.Rules {
				for _, b := range rule.Backends {
					line += fmt.Sprintf(" %v->%s*%d", r.Hosts, b.Backend, b.Weight)
					if b.Invalid {
						line += "!"
					}
				}
			}
		}
		for _, s := range l.Streams {
			line += fmt.Sprintf(" %v->%s", s.Hosts, s.Backends[0].Backend)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

const good = "Accepted=True(Accepted) ResolvedRefs=True(ResolvedRefs)"

func TestCompile(t *testing.T) {
	w := newWorld()
	w.gateway("a/g", listenerOf("http", gw.HTTPProtocolType, 80, ""), listenerOf("narrow", gw.HTTPProtocolType, 80, "*.x.example"), listenerOf("dns", gw.UDPProtocolType, 53, ""))
	w.route("a/r", "a/g", "a.x.example", "a/web")
	w.route("a/only", "a/g#narrow", "", "a/web")
	udp := &gw.UDPRoute{ObjectMeta: w.meta("a/u")}
	udp.Spec.ParentRefs = []gw.ParentReference{parentOf("a/g")}
	udp.Spec.Rules = []gw.UDPRouteRule{{BackendRefs: []gw.BackendRef{{BackendObjectReference: backendOf("a/web", 53)}}}}
	w.UDPRoutes = append(w.UDPRoutes, udp)
	out := Compile(w.Input)
	want := `gateway a/g/http HTTP:24001 for 80 "" [a.x.example]->a/web:80*1
gateway a/g/narrow HTTP:24001 for 80 "*.x.example" [a.x.example]->a/web:80*1 []->a/web:80*1
gateway a/g/dns UDP:24003 for 53 "" []->a/web:53/UDP`
	if got := out.served(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	for _, r := range [][2]string{{"HTTPRoute", "a/r"}, {"HTTPRoute", "a/only"}, {"UDPRoute", "a/u"}} {
		if got := out.route(r[0], r[1]); got != good {
			t.Errorf("%v: %s", r, got)
		}
	}
	status := out.Statuses.Gateways[types.NamespacedName{Namespace: "a", Name: "g"}]
	if got := conditions(status.Conditions); got != "Accepted=True(Accepted) Programmed=True(Programmed) ResolvedRefs=True(ResolvedRefs)" || status.Addresses[0].Value != "192.0.2.1" {
		t.Errorf("%s %v", got, status.Addresses)
	}
	if status.Listeners[0].AttachedRoutes != 1 || status.Listeners[1].AttachedRoutes != 2 || status.Listeners[2].AttachedRoutes != 1 {
		t.Errorf("%+v", status.Listeners)
	}
	if got := out.Ports[types.NamespacedName{Namespace: "a", Name: "g"}]; !slices.Equal(got, []Port{{80, false}, {53, true}}) {
		t.Errorf("%v", got)
	}
}

// What cannot be served is said with the reason that the specification has for it.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *world)
		route  string
		served string
	}{
		{"no such section", func(w *world) { w.HTTPRoutes[0].Spec.ParentRefs[0] = parentOf("a/g#none") }, "Accepted=False(NoMatchingParent) ResolvedRefs=True(ResolvedRefs)", ""},
		{"another namespace", func(w *world) { w.HTTPRoutes[0].Namespace = "b" }, "", ""},
		{"no such host", func(w *world) { w.HTTPRoutes[0].Spec.Hostnames = []gw.Hostname{"y.example"} }, "Accepted=False(NoMatchingListenerHostname) ResolvedRefs=True(ResolvedRefs)", ""},
		{"no such Service", func(w *world) { w.HTTPRoutes[0].Spec.Rules[0].BackendRefs[0].Name = "none" }, "Accepted=True(Accepted) ResolvedRefs=False(BackendNotFound)", "!"},
		{"no Service", func(w *world) { w.HTTPRoutes[0].Spec.Rules[0].BackendRefs[0].Kind = new(gw.Kind("Bucket")) }, "Accepted=True(Accepted) ResolvedRefs=False(InvalidKind)", "!"},
		{"a Service of others", func(w *world) {
			w.HTTPRoutes[0].Spec.Rules[0].BackendRefs[0].BackendObjectReference = backendOf("b/web", 80)
		}, "Accepted=True(Accepted) ResolvedRefs=False(RefNotPermitted)", "!"},
		{"a Service that others grant", func(w *world) {
			w.HTTPRoutes[0].Spec.Rules[0].BackendRefs[0].BackendObjectReference = backendOf("b/web", 80)
			w.Grants = []*gw.ReferenceGrant{{ObjectMeta: w.meta("b/grant"), Spec: gw.ReferenceGrantSpec{From: []gw.ReferenceGrantFrom{{Group: gw.GroupName, Kind: "HTTPRoute", Namespace: "a"}}, To: []gw.ReferenceGrantTo{{Kind: "Service"}}}}}
		}, good, "b/web:80*1"},
		{"an expression without end", func(w *world) {
			w.HTTPRoutes[0].Spec.Rules[0].Matches = []gw.HTTPRouteMatch{{Path: &gw.HTTPPathMatch{Type: new(gw.PathMatchRegularExpression), Value: new("/(")}}}
		}, "Accepted=False(UnsupportedValue) ResolvedRefs=True(ResolvedRefs)", ""},
		{"two things at once", func(w *world) {
			w.HTTPRoutes[0].Spec.Rules[0].Filters = []gw.HTTPRouteFilter{{Type: gw.HTTPRouteFilterRequestRedirect, RequestRedirect: &gw.HTTPRequestRedirectFilter{}}, {Type: gw.HTTPRouteFilterURLRewrite, URLRewrite: &gw.HTTPURLRewriteFilter{}}}
		}, "Accepted=False(IncompatibleFilters) ResolvedRefs=True(ResolvedRefs)", ""},
		{"a filter of others", func(w *world) {
			w.HTTPRoutes[0].Spec.Rules[0].Filters = []gw.HTTPRouteFilter{{Type: gw.HTTPRouteFilterExtensionRef}}
		}, "Accepted=False(UnsupportedValue) ResolvedRefs=True(ResolvedRefs)", ""},
		{"another class", func(w *world) { w.Gateways[0].Spec.GatewayClassName = "other" }, "", ""},
	} {
		w := newWorld()
		w.gateway("a/g", listenerOf("http", gw.HTTPProtocolType, 80, "*.x.example"))
		w.route("a/r", "a/g", "a.x.example", "a/web")
		c.change(w)
		out := Compile(w.Input)
		if got := out.route("HTTPRoute", "a/r"); got != c.route {
			t.Errorf("%s: %s, want %s", c.name, got, c.route)
		}
		if got := out.served(); !strings.Contains(got, c.served) || c.served == "" && strings.Contains(got, "->") {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

// Of two listeners for the same place the first one has it.
func TestConflicts(t *testing.T) {
	w := newWorld()
	w.gateway("a/g", listenerOf("http", gw.HTTPProtocolType, 80, ""), listenerOf("again", gw.HTTPProtocolType, 80, ""), listenerOf("raw", gw.TCPProtocolType, 80, ""), listenerOf("odd", "example.com/odd", 81, ""), listenerOf("tls", gw.HTTPSProtocolType, 443, ""))
	out := Compile(w.Input)
	status := out.Statuses.Gateways[types.NamespacedName{Namespace: "a", Name: "g"}]
	for i, want := range []string{
		"Accepted=True(Accepted) Conflicted=False(NoConflicts) Programmed=True(Programmed) ResolvedRefs=True(ResolvedRefs)",
		"Accepted=False(HostnameConflict) Conflicted=True(HostnameConflict) Programmed=False(HostnameConflict) ResolvedRefs=True(ResolvedRefs)",
		"Accepted=False(ProtocolConflict) Conflicted=True(ProtocolConflict) Programmed=False(ProtocolConflict) ResolvedRefs=True(ResolvedRefs)",
		"Accepted=False(UnsupportedProtocol) Conflicted=False(NoConflicts) Programmed=False(Invalid) ResolvedRefs=True(ResolvedRefs)",
		"Accepted=True(Accepted) Conflicted=False(NoConflicts) Programmed=False(Invalid) ResolvedRefs=False(InvalidCertificateRef)",
	} {
		if got := conditions(status.Listeners[i].Conditions); got != want {
			t.Errorf("%s: %s", status.Listeners[i].Name, got)
		}
	}
	if got := conditions(status.Conditions); !strings.Contains(got, "Accepted=True(ListenersNotValid)") {
		t.Error(got)
	}
	if got := out.served(); strings.Count(got, "\n") != 0 {
		t.Error(got)
	}
}

func TestIntersect(t *testing.T) {
	for _, c := range []struct{ route, listener, want string }{
		{"", "a.example", "ok"}, {"a.example", "", "a.example ok"}, {"a.example", "a.example", "a.example ok"}, {"a.example", "b.example", ""},
		{"x.a.example", "*.a.example", "x.a.example ok"}, {"x.y.a.example", "*.a.example", "x.y.a.example ok"}, {"a.example", "*.a.example", ""},
		{"*.a.example", "x.a.example", "x.a.example ok"}, {"*.example", "*.a.example", "*.a.example ok"}, {"*.a.example", "*.example", "*.a.example ok"},
		{"*.a.example", "*.b.example", ""}, {"A.Example", "a.example", "a.example ok"},
	} {
		var of []gw.Hostname
		if c.route != "" {
			of = []gw.Hostname{gw.Hostname(c.route)}
		}
		all, ok := intersect(of, c.listener)
		got := strings.Join(all, " ")
		if ok {
			got = strings.TrimSpace(got + " ok")
		}
		if got != c.want {
			t.Errorf("%q at %q: %q, want %q", c.route, c.listener, got, c.want)
		}
	}
}

func TestServiceName(t *testing.T) {
	if got := ServiceName("g"); got != "g-knarr" {
		t.Error(got)
	}
	long := strings.Repeat("a", 100)
	a, b := ServiceName(long+"1"), ServiceName(long+"2")
	if len(a) > 63 || a == b {
		t.Errorf("%s %s", a, b)
	}
}
