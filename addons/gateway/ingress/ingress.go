// Package ingress turns Ingresses, with the annotations of ingress-nginx, into what the
// data plane serves, and says of each Ingress what of it is not served and why. It is
// pure: it reads the objects that it is given and writes nothing.
package ingress

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/gateway/route"
	"knarr/internal/references"
	"knarr/internal/run"
)

// Ports that Ingresses are served at, on every address of every node.
const (
	HTTPPort, HTTPSPort = 80, 443
)

// The names of the listeners.
const (
	HTTPListener, HTTPSListener = "ingress/http", "ingress/https"
	passthroughListener         = "ingress/passthrough/"
)

// What one Ingress may ask for. Tenants write Ingresses: what is over is not served,
// and an event says so.
const (
	maxPaths    = 1000
	maxAliases  = 100
	maxFaults   = 20
	maxPathSize = 2048
	// MaxPathsEach is what the Ingresses, or the HTTPRoutes and GRPCRoutes, of one namespace
	// may have together.
	MaxPathsEach = 5000
)

// Input is what of a cluster is read.
type Input struct {
	// Ingresses are those of our class.
	Ingresses []*networkingv1.Ingress
	// Service, Secret and ConfigMap find one, or nil.
	Service   func(types.NamespacedName) *corev1.Service
	Secret    func(types.NamespacedName) *corev1.Secret
	ConfigMap func(types.NamespacedName) *corev1.ConfigMap
	// Left are Secrets and ConfigMaps that are not read because there are too many, and why.
	Left map[references.Object]string
	// Granted says whether a ReferenceGrant lets the Ingresses of a namespace refer to a
	// Service of another one; nil means that none does.
	Granted func(from string, to types.NamespacedName) bool
	// Inside are the ranges of pods and Services: no URL names an address there.
	Inside []netip.Prefix
	// Domain of the cluster.
	Domain string
	// Challenge is the thumbprint of the account at an authority that speaks ACME.
	Challenge string
	// Default is the certificate of names that no Ingress has one for.
	Default *tls.Certificate
	// Parsed keeps certificates and patterns from one compilation to the next.
	Parsed *Parsed
	Now    time.Time
}

// Output is what becomes of them.
type Output struct {
	Listeners []route.Listener
	Backends  map[string]route.Backend
	// Targets are where the endpoints of each backend are found.
	Targets  map[string]Target
	Verdicts map[types.NamespacedName]Verdict
	Orders   []Order
}

// An Order is a certificate that an Ingress wants to be got by ACME.
type Order struct {
	Secret  types.NamespacedName
	Hosts   []string // in their order
	Ingress *networkingv1.Ingress
}

// A Target is a port of a Service.
type Target struct {
	Service types.NamespacedName
	// Port is the name that the EndpointSlices give the port.
	Port string
	// UDP says that it is a port for datagrams.
	UDP bool
	// Number, if it is set, is asked at the Service's own address, and no EndpointSlice.
	Number uint16
}

// A Verdict is what there is to say of an Ingress.
type Verdict struct {
	// Faults are what of it is not served as it is asked for.
	Faults []Fault
}

// A Fault is a sentence for an event.
type Fault struct {
	// Warning tells what is not served from what has no counterpart here.
	Warning bool
	Text    string
}

// Compile decides what is served. Older Ingresses come before younger ones.
func Compile(in Input) *Output {
	c := &compilation{
		Input: in,
		out: &Output{
			Backends: make(map[string]route.Backend, len(in.Ingresses)), Targets: make(map[string]Target, len(in.Ingresses)),
			Verdicts: make(map[types.NamespacedName]Verdict, len(in.Ingresses)),
		},
		names: make(map[string]*tls.Certificate, len(in.Ingresses)), claims: make(map[claim]types.NamespacedName, len(in.Ingresses)), canaries: map[claim]*canary{},
		owners: make(map[string]string, len(in.Ingresses)), paths: map[string]int{}, offered: map[string]int{}, http3Named: map[string]bool{},
		routes: make([]route.Route, 0, len(in.Ingresses)),
	}
	if len(in.Ingresses) == 0 {
		in.Parsed.Sweep()
		return c.out
	}
	all := make([]*subject, len(in.Ingresses))
	for i, ing := range in.Ingresses {
		s := &subject{ing: ing, name: types.NamespacedName{Namespace: ing.Namespace, Name: ing.Name}}
		if all[i], s.known = s, in.Parsed.outcome(ing); s.known != nil {
			s.want, s.hosts = s.known.want, s.known.hosts
		} else {
			s.guard(func() { s.read(c) })
			s.hosts = s.allHosts()
		}
	}
	slices.SortFunc(all, func(a, b *subject) int {
		return cmp.Or(a.ing.CreationTimestamp.Compare(b.ing.CreationTimestamp.Time), cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Name, b.name.Name))
	})
	for _, s := range all {
		for _, host := range s.hosts {
			if _, owned := c.owners[host]; !owned {
				c.owners[host] = s.name.Namespace
			}
		}
	}
	for _, s := range all {
		s.certified[0] = len(s.faults)
		s.guard(func() { c.certify(s); c.order(s) })
		s.certified[1] = len(s.faults)
		if s.want.canary.on {
			s.guard(func() { c.offer(s) })
		}
	}
	for _, s := range all {
		if !s.want.canary.on && !c.again(s) {
			s.guard(func() { c.remember(s) })
		}
	}
	for _, offered := range c.canaries {
		if !offered.used {
			offered.of.fault("no Ingress that is not a canary serves %s: nothing is sent to the canary", offered.at)
		}
	}
	for _, s := range all {
		c.out.Verdicts[s.name] = Verdict{Faults: s.bounded()}
	}
	c.listen()
	in.Parsed.Sweep()
	return c.out
}

// A compilation is one under way.
type compilation struct {
	Input
	out    *Output
	routes []route.Route
	// names are the certificates of hosts.
	names map[string]*tls.Certificate
	// claims are whose a host's path is.
	claims map[claim]types.NamespacedName
	// owners are the namespaces that hosts are of, those of the oldest Ingresses: no other
	// namespace takes a part of a host's requests, by a path, canary, alias or TLS.
	owners   map[string]string
	canaries map[claim]*canary
	// paths are how many a namespace has, offered how many of canaries.
	paths, offered map[string]int
	http3          []string        // hosts that are served by HTTP/3 as well
	http3Named     map[string]bool // the same
	challenged     []string        // hosts whose certificates are got by ACME
	passthrough    []route.Listener
}

// within counts paths of an Ingress, of which it has so many so far, and says whether they
// are served.
func (s *subject) within(of map[string]int, sofar *int, more int) bool {
	switch namespace := s.name.Namespace; {
	case *sofar+more > maxPaths:
		s.fault("it has more than %d paths, those of its aliases among them; those over are not served", maxPaths)
		return false
	case of[namespace]+more > MaxPathsEach:
		s.fault("the Ingresses of namespace %s have more than %d paths; those over are not served, of the youngest Ingresses first", namespace, MaxPathsEach)
		return false
	default:
		*sofar += more
		of[namespace] += more
		return true
	}
}

// A claim is a path of a host, which one Ingress can have.
type claim struct {
	host, path string
	kind       route.PathType
}

func (c claim) String() string {
	host := c.host
	if host == "" {
		host = "*"
	}
	return fmt.Sprintf("host %s, path %s (%s)", host, c.path, cmp.Or(c.kind, route.PathPrefix))
}

// A subject is an Ingress in a compilation.
type subject struct {
	ing    *networkingv1.Ingress
	name   types.NamespacedName
	want   *settings
	faults []Fault
	broken bool
	hosts  []string // of its rules, then its aliases
	// known is what the compilation before has made of it; asked is what this one has asked
	// for it, nil if that is not all that it depends on.
	known *outcome
	asked *outcome
	// certified are the places among the faults of those that were found with certificates.
	certified [2]int
}

// guard does a step of an Ingress' compilation. What a tenant writes must not end that of
// the others: one at which a step fails is not served.
func (s *subject) guard(step func()) {
	if s.broken {
		return
	}
	if err := run.Catch("gateway: compile "+RouteName(s.ing), func() error { step(); return nil }); err != nil {
		s.broken = true
		s.fault("it is not served: reading it failed: %v", err)
	}
}

func (s *subject) fault(format string, args ...any) {
	s.note(Fault{true, fmt.Sprintf(format, args...)})
}

func (s *subject) note(f Fault) {
	if len(s.faults) <= maxFaults && !slices.Contains(s.faults, f) {
		s.faults = append(s.faults, f)
	}
}

// bounded are the faults of which events tell.
func (s *subject) bounded() []Fault {
	if len(s.faults) > maxFaults {
		return append(s.faults[:maxFaults:maxFaults], Fault{true, "there is more that is not served; mend this first"})
	}
	return s.faults
}

// listen puts the routes where clients ask.
func (c *compilation) listen() {
	var http3 uint16
	if len(c.http3) > 0 {
		http3 = HTTPSPort
	}
	c.out.Listeners = append([]route.Listener{
		{Name: HTTPListener, Port: HTTPPort, PublicPort: HTTPPort, Protocol: route.HTTP, Routes: c.routes, Challenge: c.Challenge, ChallengeHosts: c.challenged},
		{Name: HTTPSListener, Port: HTTPSPort, PublicPort: HTTPSPort, Protocol: route.HTTPS, Routes: c.routes,
			Certificates: []*tls.Certificate{c.Default}, Names: c.names, Own: c.besidePassthrough(), HTTP3Port: http3, HTTP3Hosts: c.http3},
	}, c.passthrough...)
}

// besidePassthrough are the hosts below wildcards whose connections are passed on: whoever
// passes those of a wildcard on gets none of a host that has rules of its own.
func (c *compilation) besidePassthrough() (own []string) {
	whole, wildcards := map[string]bool{}, false
	for i := range c.passthrough {
		name := c.passthrough[i].Hostname
		whole[name] = true
		wildcards = wildcards || strings.HasPrefix(name, "*.")
	}
	if !wildcards {
		return nil
	}
	for host := range c.owners {
		if whole[host] {
			continue
		}
		for rest := strings.TrimPrefix(host, "*."); rest != ""; {
			_, after, _ := strings.Cut(rest, ".")
			if rest = after; rest != "" && whole["*."+rest] {
				own = append(own, host)
				break
			}
		}
	}
	slices.Sort(own)
	return own
}

// HTTP3 says whether something is served by HTTP/3.
func (o *Output) HTTP3() bool {
	return slices.ContainsFunc(o.Listeners, func(l route.Listener) bool { return l.HTTP3Port != 0 })
}

// Services are those that the backends need.
func (o *Output) Services() map[types.NamespacedName]bool {
	all := map[types.NamespacedName]bool{}
	for t := range maps.Values(o.Targets) {
		all[t.Service] = true
	}
	return all
}
