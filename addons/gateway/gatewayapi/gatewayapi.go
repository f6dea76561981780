// Package gatewayapi turns Gateways, ListenerSets, routes and policies of the Gateway API
// into what the data plane serves, and into the status that each of them gets. It is pure:
// it reads the objects that it is given and writes nothing.
package gatewayapi

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/ingress"
	"knarr/addons/gateway/route"
	"knarr/internal/references"
	"knarr/internal/run"
)

// Controller is the name by which GatewayClasses mean this implementation.
const Controller = references.GatewayController

// Input is what of a cluster is read.
type Input struct {
	Classes      []*gw.GatewayClass
	Gateways     []*gw.Gateway
	ListenerSets []*gw.ListenerSet
	HTTPRoutes   []*gw.HTTPRoute
	GRPCRoutes   []*gw.GRPCRoute
	TLSRoutes    []*gw.TLSRoute
	TCPRoutes    []*gw.TCPRoute
	UDPRoutes    []*gw.UDPRoute
	Grants       []*gw.ReferenceGrant
	Policies     []*gw.BackendTLSPolicy
	// Namespace is the labels of one, or nil.
	Namespace func(name string) map[string]string
	// Service, Secret and ConfigMap find one, or nil.
	Service   func(types.NamespacedName) *corev1.Service
	Secret    func(types.NamespacedName) *corev1.Secret
	ConfigMap func(types.NamespacedName) *corev1.ConfigMap
	// Left are Secrets and ConfigMaps that are not read because there are too many, and why.
	Left map[references.Object]string
	// Place is where a Gateway's ports are served on this node, and what clients reach
	// it by; nil while it has no place yet.
	Place func(gateway types.NamespacedName) *Place
	// Reserve, where the ports of the nodes are given away, is told of all that Gateways
	// need, and returns those that get none, with the reason.
	Reserve func(map[types.NamespacedName][]Port) map[GatewayPort]string
	// Changed says whether a Service may be another one than in the compilation before; nil
	// means that any may.
	Changed func(references.Object) bool
	// ServeOnly leaves out what routes are told.
	ServeOnly bool
	// Parsed keeps certificates and patterns, and Known what became of routes, from one
	// compilation to the next.
	Parsed *ingress.Parsed
	Known  *Known // nil: there was none
	Now    time.Time
}

// A Place is what was found for a Gateway.
type Place struct {
	// Addresses of this node that it listens at, and the port there for each that
	// clients ask.
	Addresses []netip.Addr
	Ports     map[Port]uint16
	// Public are the addresses that clients reach it by.
	Public []corev1.LoadBalancerIngress
	// Challenge is the thumbprint of the account at an authority that speaks ACME.
	Challenge string
}

// A Port is one that clients ask.
type Port struct {
	Number uint16
	UDP    bool
}

// A GatewayPort is a port of a Gateway.
type GatewayPort struct {
	Gateway types.NamespacedName
	Port
}

// Output is what becomes of them. The maps of backends are the very ones of the compilation
// before if nothing of them has changed.
type Output struct {
	Listeners []route.Listener
	Backends  map[string]route.Backend
	Targets   map[string]ingress.Target
	// Orders are the certificates that Gateways want to be got by ACME, Of the Gateways of the
	// Listeners that answer challenges for them.
	Orders []ingress.Order
	Of     map[string]*gw.Gateway
	// Ports are those of the Gateways that are served.
	Ports    map[types.NamespacedName][]Port
	Statuses Statuses
}

// Statuses are what the objects get.
type Statuses struct {
	Gateways     map[types.NamespacedName]gw.GatewayStatus
	ListenerSets map[types.NamespacedName]gw.ListenerSetStatus
	// Routes are by kind. Entries of other controllers are not among them.
	Routes   map[string]map[types.NamespacedName][]gw.RouteParentStatus
	Policies map[types.NamespacedName][]gw.PolicyAncestorStatus
}

// A compilation is one under way.
type compilation struct {
	Input
	out      *Output
	grants   grants
	gateways map[types.NamespacedName]*gateway
	sets     map[types.NamespacedName]*listenerSet
	policies policies

	in    *Input
	known *Known
	same  bool // what all routes depend on is as it was
	made  *outcome
}

// Compile decides what is served. Older objects come before younger ones.
func Compile(in Input) *Output {
	in.Classes, in.Gateways, in.ListenerSets, in.Grants, in.Policies = inOrder(in.Classes), inOrder(in.Gateways), inOrder(in.ListenerSets), inOrder(in.Grants), inOrder(in.Policies)
	k := in.Known
	if k == nil {
		k = NewKnown()
	}
	k.round++
	same := k.env.holds(&in)
	if !same {
		k.env, k.slots = newEnvironment(&in), map[slotKey]*slot{}
	}
	c := &compilation{
		Input: in, in: &in, known: k, same: same,
		out: &Output{
			Ports: map[types.NamespacedName][]Port{}, Of: map[string]*gw.Gateway{},
			Statuses: Statuses{
				Gateways: map[types.NamespacedName]gw.GatewayStatus{}, ListenerSets: map[types.NamespacedName]gw.ListenerSetStatus{},
				Routes: map[string]map[types.NamespacedName][]gw.RouteParentStatus{}, Policies: map[types.NamespacedName][]gw.PolicyAncestorStatus{},
			},
		},
		grants: grantsOf(in.Grants), gateways: map[types.NamespacedName]*gateway{}, sets: map[types.NamespacedName]*listenerSet{},
	}
	c.noting(&in)
	classes := map[gw.ObjectName]bool{}
	for _, class := range in.Classes {
		if class.Spec.ControllerName == Controller {
			_, classes[gw.ObjectName(class.Name)] = ClassStatus(class)
		}
	}
	c.policies = c.readPolicies()
	for _, g := range in.Gateways {
		if classes[g.Spec.GatewayClassName] {
			guard(g, "Gateway", func() { c.gateways[nameOf(g)] = c.newGateway(g) })
		}
	}
	for _, s := range in.ListenerSets {
		guard(s, "ListenerSet", func() { c.join(s) })
	}
	for _, g := range in.Gateways {
		if mine := c.gateways[nameOf(g)]; mine != nil && guard(g, "Gateway", func() { c.judge(mine); c.judgeHTTP3(mine) }) != nil {
			delete(c.gateways, nameOf(g))
		}
	}
	c.reserve()
	for _, g := range c.gateways {
		for i, l := range g.listeners {
			key := slotKey{g.name, i}
			if k.slots[key] == nil {
				k.slots[key] = &slot{}
			}
			l.slot = k.slots[key]
			l.slot.now = l
		}
	}
	c.httpRoutes()
	c.grpcRoutes()
	c.streamRoutes()
	for _, g := range in.Gateways {
		if mine := c.gateways[nameOf(g)]; mine != nil {
			c.order(mine)
			c.listen(mine)
			c.finish(mine)
		}
	}
	c.finishPolicies()
	in.Parsed.Sweep(k.uses)
	maps.DeleteFunc(k.counts, func(_ string, n *count) bool { return n.round != k.round })
	k.shared.Apply()
	c.out.Backends, c.out.Targets = k.shared.Backends, k.shared.Targets
	return c.out
}

// guard does a step of an object's compilation. What a tenant writes must not end that of
// the others: one at which a step fails is not served.
func guard(o metav1.Object, kind string, step func()) error {
	return run.Catch("gateway: compile "+kind+" "+nameOf(o).String(), func() error { step(); return nil })
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// inOrder sorts by age, then by name.
func inOrder[T metav1.Object](all []T) []T {
	if isInOrder(all) {
		return all
	}
	return slices.SortedFunc(slices.Values(all), older[T])
}

func isInOrder[T metav1.Object](all []T) bool { return slices.IsSortedFunc(all, older[T]) }

func older[T metav1.Object](a, b T) int {
	at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return cmp.Or(at.Compare(bt.Time), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}

// ClassStatus is that of a GatewayClass of ours; ok says that its Gateways are served.
func ClassStatus(class *gw.GatewayClass) (status gw.GatewayClassStatus, ok bool) {
	ok = class.Spec.ParametersRef == nil
	c := condition(class.Generation, string(gw.GatewayClassConditionStatusAccepted), ok, string(gw.GatewayClassReasonAccepted), "the class is served by knarr")
	if !ok {
		c.Reason, c.Message = string(gw.GatewayClassReasonInvalidParameters), "classes with parameters are not served"
	}
	status.Conditions = []metav1.Condition{c}
	for _, name := range Features {
		status.SupportedFeatures = append(status.SupportedFeatures, gw.SupportedFeature{Name: gw.FeatureName(name)})
	}
	return status, ok
}

// condition is one without its time, which is the writer's to know.
func condition(generation int64, kind string, holds bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: kind, Status: status, ObservedGeneration: generation, Reason: reason, Message: message}
}

// Features are the names of what is supported beyond the core, and of the core's profiles,
// in their order.
var Features = []string{
	"BackendTLSPolicy", "BackendTLSPolicySANValidation", "GRPCRoute", "GRPCRouteNamedRouteRule", "Gateway", "GatewayAddressEmpty",
	"GatewayBackendClientCertificate", "GatewayFrontendClientCertificateValidation", "GatewayFrontendClientCertificateValidationInsecureFallback",
	"GatewayHTTPListenerIsolation", "GatewayHTTPSListenerDetectMisdirectedRequests", "GatewayInfrastructure", "GatewayPort8080", "GatewayStaticAddresses",
	"HTTPRoute", "HTTPRoute303RedirectStatusCode", "HTTPRoute307RedirectStatusCode", "HTTPRoute308RedirectStatusCode",
	"HTTPRouteBackendProtocolH2C", "HTTPRouteBackendProtocolWebSocket", "HTTPRouteBackendRequestHeaderModification", "HTTPRouteBackendTimeout",
	"HTTPRouteCORS", "HTTPRouteDestinationPortMatching", "HTTPRouteHostRewrite", "HTTPRouteMethodMatching", "HTTPRouteNamedRouteRule", "HTTPRouteParentRefPort",
	"HTTPRoutePathRedirect", "HTTPRoutePathRewrite", "HTTPRoutePortRedirect", "HTTPRouteQueryParamMatching", "HTTPRouteRequestMirror",
	"HTTPRouteRequestMultipleMirrors", "HTTPRouteRequestPercentageMirror", "HTTPRouteRequestTimeout", "HTTPRouteResponseHeaderModification",
	"HTTPRouteSchemeRedirect", "ListenerSet",
	"ReferenceGrant", "TCPRoute", "TLSRoute", "TLSRouteModeMixed", "TLSRouteModeTerminate", "UDPRoute",
}
