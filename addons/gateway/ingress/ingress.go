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
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	// Changed says whether a Service, Secret or ConfigMap may be another one than in the
	// compilation before; nil means that any may.
	Changed func(references.Object) bool
	// Parsed keeps certificates, patterns and what became of Ingresses from one compilation to
	// the next.
	Parsed *Parsed
	Now    time.Time
}

// Output is what becomes of them. It is not changed any more; a map of which nothing changes
// is the very one of the compilation before.
type Output struct {
	Listeners []route.Listener
	Backends  map[string]route.Backend
	// Targets are where the endpoints of each backend are found.
	Targets map[string]Target
	// Verdicts are those of Ingresses of which there is something to say.
	Verdicts map[types.NamespacedName]Verdict
	Orders   []Order
}

// An Order is a certificate that an Ingress, or a Gateway, wants to be got by ACME.
type Order struct {
	Secret types.NamespacedName
	Hosts  []string // in their order
	Owner  Owner
	// Faults are what is not ordered, and why, beside what an Ingress' Verdict says.
	Faults []string
}

// An Owner is the object that asks for a certificate.
type Owner interface {
	metav1.Object
	runtime.Object
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

// Compile decides what is served. Older Ingresses come before younger ones. Of what Parsed
// knows, only what has changed is compiled.
func Compile(in Input) *Output {
	if len(in.Ingresses) == 0 {
		in.Parsed.known = nil
		in.Parsed.Sweep(nil)
		return &Output{Backends: map[string]route.Backend{}, Targets: map[string]Target{}, Verdicts: map[types.NamespacedName]Verdict{}}
	}
	k := in.Parsed.known
	if !k.holds(&in) {
		k = newKnown(&in)
		in.Parsed.known = k
	}
	k.update(&in)
	in.Parsed.Sweep(k.uses)
	return k.output()
}

// A compilation is one under way, of one part.
type compilation struct {
	Input
	made     *part
	backends map[string]Made
	// names are the certificates of hosts.
	names map[string]*tls.Certificate
	// claims are whose a host's path is.
	claims map[claim]types.NamespacedName
	// owners are the namespaces that hosts are of, those of the oldest Ingresses: no other
	// namespace takes a part of a host's requests, by a path, canary, alias or TLS.
	owners   map[string]string
	canaries map[claim]*canary
	// paths are how many a namespace has, offered how many of canaries; refused says that some
	// are over.
	paths, offered map[string]int
	refused        map[string]bool
	http3Named     map[string]bool // hosts that are served by HTTP/3 as well
}

// within counts paths of an Ingress, of which it has so many so far, and says whether they
// are served.
func (c *compilation) within(s *subject, of map[string]int, sofar *int, more int) bool {
	switch namespace := s.name.Namespace; {
	case *sofar+more > maxPaths:
		s.fault("it has more than %d paths, those of its aliases among them; those over are not served", maxPaths)
		return false
	case of[namespace]+more > MaxPathsEach:
		c.refused[namespace] = true
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
