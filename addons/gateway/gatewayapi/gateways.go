package gatewayapi

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"
)

// maxListeners bounds those of one Gateway with its ListenerSets.
const maxListeners = 1000

// A gateway is one of a class of ours.
type gateway struct {
	*gw.Gateway
	name      types.NamespacedName
	listeners []*listener // its own, then those of its ListenerSets
	sets      []*listenerSet
	// refused says why nothing of it is served.
	refused *metav1.Condition
	// client is what is shown to backends that speak TLS.
	client         *tls.Certificate
	clientResolved metav1.Condition
	insecure       bool
	challenged     []string // hosts that certificates are ordered for
}

// A listenerSet is one that names a Gateway of ours.
type listenerSet struct {
	*gw.ListenerSet
	name      types.NamespacedName
	of        *gateway
	listeners []*listener
	allowed   bool
}

func (c *compilation) newGateway(of *gw.Gateway) *gateway {
	g := &gateway{Gateway: of, name: nameOf(of)}
	for i := range of.Spec.Listeners {
		l := &of.Spec.Listeners[i]
		g.listeners = append(g.listeners, &listener{
			of: g, namespace: of.Namespace, generation: of.Generation, name: l.Name, hostname: l.Hostname, port: l.Port, protocol: l.Protocol, tls: l.TLS, routes: l.AllowedRoutes,
		})
	}
	for _, a := range of.Spec.Addresses {
		if _, err := netip.ParseAddr(a.Value); a.Type != nil && *a.Type != gw.IPAddressType || a.Value != "" && err != nil {
			refused := condition(of.Generation, string(gw.GatewayConditionAccepted), false, string(gw.GatewayReasonUnsupportedAddress), "only IP addresses can be asked for")
			g.refused = &refused
		}
	}
	if i := of.Spec.Infrastructure; i != nil && i.ParametersRef != nil {
		refused := condition(of.Generation, string(gw.GatewayConditionAccepted), false, string(gw.GatewayReasonInvalidParameters), "Gateways with parameters are not served")
		g.refused = &refused
	}
	g.clientResolved = condition(of.Generation, string(gw.GatewayConditionResolvedRefs), true, string(gw.GatewayReasonResolvedRefs), "all references are resolved")
	if t := of.Spec.TLS; t != nil && t.Backend != nil && t.Backend.ClientCertificateRef != nil {
		cert, reason, message := c.certificate(of.Namespace, *t.Backend.ClientCertificateRef)
		if reason != "" {
			if reason == string(gw.ListenerReasonInvalidCertificateRef) {
				reason = string(gw.GatewayReasonInvalidClientCertificateRef)
			}
			g.clientResolved = condition(of.Generation, string(gw.GatewayConditionResolvedRefs), false, reason, message)
		}
		g.client = cert
	}
	return g
}

// join adds a ListenerSet to its Gateway, if that lets it.
func (c *compilation) join(of *gw.ListenerSet) {
	ref := of.Spec.ParentRef
	if ref.Group != nil && *ref.Group != gw.GroupName || ref.Kind != nil && *ref.Kind != "Gateway" {
		return
	}
	name := types.NamespacedName{Namespace: of.Namespace, Name: string(ref.Name)}
	if ref.Namespace != nil {
		name.Namespace = string(*ref.Namespace)
	}
	g := c.gateways[name]
	if g == nil {
		return
	}
	s := &listenerSet{ListenerSet: of, name: nameOf(of), of: g}
	c.sets[s.name] = s
	s.allowed = c.allowsSet(g, of.Namespace)
	g.sets = append(g.sets, s)
	if !s.allowed {
		return
	}
	for i := range of.Spec.Listeners {
		l := &of.Spec.Listeners[i]
		entry := &listener{
			of: g, set: s, namespace: of.Namespace, generation: of.Generation, name: l.Name, hostname: l.Hostname, port: l.Port, protocol: l.Protocol, tls: l.TLS, routes: l.AllowedRoutes,
		}
		s.listeners, g.listeners = append(s.listeners, entry), append(g.listeners, entry)
	}
}

// allowsSet says whether a Gateway takes ListenerSets of a namespace.
func (c *compilation) allowsSet(g *gateway, namespace string) bool {
	if g.Spec.AllowedListeners == nil || g.Spec.AllowedListeners.Namespaces == nil || g.Spec.AllowedListeners.Namespaces.From == nil {
		return false
	}
	n := g.Spec.AllowedListeners.Namespaces
	return c.allowsNamespace(*n.From, n.Selector, g.Namespace, namespace)
}

func (c *compilation) allowsNamespace(from gw.FromNamespaces, selector *metav1.LabelSelector, own, namespace string) bool {
	switch from {
	case gw.NamespacesFromAll:
		return true
	case gw.NamespacesFromSame:
		return own == namespace
	case gw.NamespacesFromSelector:
		s, err := metav1.LabelSelectorAsSelector(selector)
		of := c.Namespace(namespace)
		return err == nil && of != nil && s.Matches(labels.Set(of))
	}
	return false
}

// validation is who may connect to a port, as spec.tls.frontend says.
func validation(g *gw.Gateway, port gw.PortNumber) *gw.FrontendTLSValidation {
	if g.Spec.TLS == nil || g.Spec.TLS.Frontend == nil {
		return nil
	}
	for _, p := range g.Spec.TLS.Frontend.PerPort {
		if p.Port == port {
			return p.TLS.Validation
		}
	}
	return g.Spec.TLS.Frontend.Default.Validation
}

// authorities are those of clients' certificates; reason says why there are none.
func (c *compilation) authorities(g *gateway, of *gw.FrontendTLSValidation) (pool *x509.CertPool, reason gw.ListenerConditionReason, message string) {
	for _, ref := range of.CACertificateRefs {
		name := types.NamespacedName{Namespace: g.Namespace, Name: string(ref.Name)}
		if ref.Namespace != nil {
			name.Namespace = string(*ref.Namespace)
		}
		if ref.Group != "" || ref.Kind != "ConfigMap" {
			reason, message = gw.ListenerReasonInvalidCACertificateKind, "authorities are read from ConfigMaps"
			continue
		}
		if !c.grants.allow(grantFrom{"Gateway", g.Namespace}, string(ref.Kind), name) {
			reason, message = gw.ListenerReasonRefNotPermitted, "no ReferenceGrant allows the reference to "+name.String()
			continue
		}
		found, err := c.authoritiesIn(name)
		if err != nil {
			reason, message = gw.ListenerReasonInvalidCACertificateRef, err.Error()
			continue
		}
		if pool == nil {
			pool = x509.NewCertPool()
		}
		for _, cert := range found {
			pool.AddCert(cert)
		}
	}
	return pool, reason, message
}

// finish is the status of a Gateway and of its ListenerSets, once it is known which routes
// they have.
func (c *compilation) finish(g *gateway) {
	status := gw.GatewayStatus{}
	generation := g.Generation
	own, valid := 0, 0
	for _, l := range g.listeners {
		if l.set == nil {
			status.Listeners = append(status.Listeners, gw.ListenerStatus{Name: l.name, SupportedKinds: l.kinds, AttachedRoutes: l.attached, Conditions: l.conditions()})
			own++
			if l.valid() {
				valid++
			}
		}
	}
	accepted := condition(generation, string(gw.GatewayConditionAccepted), true, string(gw.GatewayReasonAccepted), "the Gateway is served")
	if valid < own {
		accepted = condition(generation, string(gw.GatewayConditionAccepted), valid > 0, string(gw.GatewayReasonListenersNotValid), "a listener is not valid; its own conditions say why")
	}
	attached := int32(0)
	for _, s := range g.sets {
		if c.finishSet(s) {
			attached++
		}
	}
	if g.Spec.AllowedListeners != nil || len(g.sets) > 0 {
		status.AttachedListenerSets = &attached
	}
	if g.refused != nil {
		accepted = *g.refused
	}
	status.Addresses = c.addresses(g)
	programmed := condition(generation, string(gw.GatewayConditionProgrammed), true, string(gw.GatewayReasonProgrammed), "every node serves the Gateway")
	switch {
	case accepted.Status != metav1.ConditionTrue:
		programmed = condition(generation, string(gw.GatewayConditionProgrammed), false, string(gw.GatewayReasonInvalid), accepted.Message)
	case !c.hasWanted(g, status.Addresses):
		programmed = condition(generation, string(gw.GatewayConditionProgrammed), false, string(gw.GatewayReasonAddressNotUsable), "an address that was asked for was not given; the events of the Service "+ServiceName(g.Name)+" say why")
	case len(status.Addresses) == 0:
		programmed = condition(generation, string(gw.GatewayConditionProgrammed), false, string(gw.GatewayReasonAddressNotAssigned), "the Service "+ServiceName(g.Name)+" has no address yet")
	}
	status.Conditions = []metav1.Condition{accepted, programmed, g.clientResolved}
	if g.insecure {
		status.Conditions = append(status.Conditions, condition(generation, string(gw.GatewayConditionInsecureFrontendValidationMode), true, string(gw.GatewayReasonConfigurationChanged), "clients are let in without a valid certificate"))
	}
	c.out.Statuses.Gateways[g.name] = status
}

// hasWanted says whether a Gateway has every address that it asks for.
func (c *compilation) hasWanted(g *gateway, have []gw.GatewayStatusAddress) bool {
	for _, want := range g.Spec.Addresses {
		found := want.Value == ""
		for _, a := range have {
			found = found || a.Value == want.Value
		}
		if !found {
			return false
		}
	}
	return true
}

func (c *compilation) addresses(g *gateway) (all []gw.GatewayStatusAddress) {
	const most = 16 // that a status can have
	place := c.Place(g.name)
	if place == nil || g.refused != nil {
		return nil
	}
	for _, in := range place.Public[:min(len(place.Public), most)] {
		kind, value := gw.IPAddressType, in.IP
		if value == "" {
			kind, value = gw.HostnameAddressType, in.Hostname
		}
		all = append(all, gw.GatewayStatusAddress{Type: &kind, Value: value})
	}
	return all
}

// finishSet is the status of a ListenerSet; attached says whether it counts.
func (c *compilation) finishSet(s *listenerSet) (attached bool) {
	status, valid := gw.ListenerSetStatus{}, 0
	for _, l := range s.listeners {
		status.Listeners = append(status.Listeners, gw.ListenerEntryStatus{Name: l.name, SupportedKinds: l.kinds, AttachedRoutes: l.attached, Conditions: l.conditions()})
		if l.valid() {
			valid++
		}
	}
	both := func(accepted bool, reason gw.ListenerSetConditionReason, programmed bool, programmedReason gw.ListenerSetConditionReason, message string) {
		status.Conditions = []metav1.Condition{
			condition(s.Generation, string(gw.ListenerSetConditionAccepted), accepted, string(reason), message),
			condition(s.Generation, string(gw.ListenerSetConditionProgrammed), programmed, string(programmedReason), message),
		}
	}
	switch {
	case !s.allowed:
		both(false, gw.ListenerSetReasonNotAllowed, false, gw.ListenerSetReasonNotAllowed, "the Gateway does not allow ListenerSets of this namespace")
	case s.of.refused != nil:
		both(false, gw.ListenerSetReasonParentNotAccepted, false, gw.ListenerSetReasonParentNotAccepted, "the Gateway is not accepted")
	case valid == 0:
		both(false, gw.ListenerSetReasonListenersNotValid, false, gw.ListenerSetReasonListenersNotValid, "no listener is valid")
	case valid < len(s.listeners):
		both(true, gw.ListenerSetReasonListenersNotValid, true, gw.ListenerSetReasonProgrammed, "a listener is not valid; its own conditions say why")
	default:
		both(true, gw.ListenerSetReasonAccepted, true, gw.ListenerSetReasonProgrammed, "the listeners are served")
	}
	c.out.Statuses.ListenerSets[s.name] = status
	return s.allowed && s.of.refused == nil && valid > 0
}
