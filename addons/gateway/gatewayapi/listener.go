package gatewayapi

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/route"
	"knarr/internal/references"
)

// A listener is one of a Gateway, or of a ListenerSet of a Gateway.
type listener struct {
	of         *gateway
	set        *listenerSet // nil: the Gateway's own
	namespace  string
	generation int64

	name     gw.SectionName
	hostname *gw.Hostname
	port     gw.PortNumber
	protocol gw.ProtocolType
	tls      *gw.ListenerTLSConfig
	routes   *gw.AllowedRoutes

	kinds        []gw.RouteGroupKind
	certificates []*tls.Certificate
	clientCAs    *x509.CertPool
	unverified   bool
	http3        bool
	attached     int32
	// What is wrong, by condition; a reason of "" means nothing is.
	accepted, resolved, conflicted verdict
	content                        route.Listener
	slot                           *slot
}

// A verdict is a reason and a message.
type verdict struct{ reason, message string }

func (l *listener) host() string {
	if l.hostname == nil {
		return ""
	}
	return strings.ToLower(string(*l.hostname))
}

func (l *listener) udp() bool { return l.protocol == gw.UDPProtocolType }

// valid says whether it is served.
func (l *listener) valid() bool {
	return l.accepted.reason == "" && l.conflicted.reason == "" && l.resolved.reason == ""
}

// usable says whether routes lead somewhere by it: what is wrong with the kinds that it
// names keeps it from nothing else.
func (l *listener) usable() bool {
	return l.accepted.reason == "" && l.conflicted.reason == "" && (l.resolved.reason == "" || l.resolved.reason == string(gw.ListenerReasonInvalidRouteKinds) && len(l.kinds) > 0 ||
		len(l.certificates) > 0)
}

// conditions are those in its status.
func (l *listener) conditions() []metav1.Condition {
	const served = "the listener is served"
	accepted := condition(l.generation, string(gw.ListenerConditionAccepted), true, string(gw.ListenerReasonAccepted), served)
	programmed := condition(l.generation, string(gw.ListenerConditionProgrammed), true, string(gw.ListenerReasonProgrammed), served)
	resolved := condition(l.generation, string(gw.ListenerConditionResolvedRefs), true, string(gw.ListenerReasonResolvedRefs), "all references are resolved")
	conflicted := condition(l.generation, string(gw.ListenerConditionConflicted), false, string(gw.ListenerReasonNoConflicts), "no other listener has its place")
	if v := l.resolved; v.reason != "" {
		resolved = condition(l.generation, resolved.Type, false, v.reason, v.message)
		programmed = condition(l.generation, programmed.Type, false, string(gw.ListenerReasonInvalid), v.message)
	}
	if v := l.accepted; v.reason != "" {
		accepted = condition(l.generation, accepted.Type, false, v.reason, v.message)
		programmed = condition(l.generation, programmed.Type, false, string(gw.ListenerReasonInvalid), v.message)
	}
	if v := l.conflicted; v.reason != "" {
		conflicted = condition(l.generation, conflicted.Type, true, v.reason, v.message)
		accepted = condition(l.generation, accepted.Type, false, v.reason, v.message)
		programmed = condition(l.generation, programmed.Type, false, v.reason, v.message)
	}
	return []metav1.Condition{accepted, programmed, resolved, conflicted}
}

// served are the kinds of routes of each protocol.
var served = map[gw.ProtocolType][]gw.Kind{
	gw.HTTPProtocolType: {"HTTPRoute", "GRPCRoute"}, gw.HTTPSProtocolType: {"HTTPRoute", "GRPCRoute"},
	gw.TLSProtocolType: {"TLSRoute"}, gw.TCPProtocolType: {"TCPRoute"}, gw.UDPProtocolType: {"UDPRoute"},
}

// judge decides which listeners of a Gateway are served, the earlier ones before the later.
func (c *compilation) judge(g *gateway) {
	protocols := map[Port]gw.ProtocolType{}
	hosts := map[Port]map[string]bool{}
	for i, l := range g.listeners {
		c.judgeOne(l)
		if i >= maxListeners {
			l.accepted = verdict{string(gw.ListenerEntryReasonTooManyListeners), fmt.Sprintf("a Gateway has %d listeners at most", maxListeners)}
		}
		if l.accepted.reason != "" {
			continue
		}
		at := Port{uint16(l.port), l.udp()}
		before, there := protocols[at]
		switch {
		case there && !together(before, l.protocol):
			l.conflicted = verdict{string(gw.ListenerReasonProtocolConflict), fmt.Sprintf("port %d speaks %s already", l.port, before)}
		case hosts[at][l.host()]:
			l.conflicted = verdict{string(gw.ListenerReasonHostnameConflict), fmt.Sprintf("port %d has a listener for %q already", l.port, l.host())}
		default:
			if !there {
				protocols[at], hosts[at] = l.protocol, map[string]bool{}
			}
			hosts[at][l.host()] = true
			if !slices.Contains(c.out.Ports[g.name], at) && g.refused == nil {
				c.out.Ports[g.name] = append(c.out.Ports[g.name], at)
			}
		}
	}
}

// judgeHTTP3 finds the ports of UDP where listeners are served by HTTP/3 as well: those of
// which no listener for datagrams is.
func (c *compilation) judgeHTTP3(g *gateway) {
	if g.Annotations[references.HTTP3Annotation] != "true" || g.refused != nil {
		return
	}
	datagrams := map[uint16]bool{}
	for _, l := range g.listeners {
		datagrams[uint16(l.port)] = datagrams[uint16(l.port)] || l.udp()
	}
	for _, l := range g.listeners {
		if l.protocol != gw.HTTPSProtocolType || datagrams[uint16(l.port)] || l.accepted.reason != "" || l.conflicted.reason != "" {
			continue
		}
		l.http3 = true
		if at := (Port{uint16(l.port), true}); !slices.Contains(c.out.Ports[g.name], at) {
			c.out.Ports[g.name] = append(c.out.Ports[g.name], at)
		}
	}
}

// together says whether two protocols can share a port.
func together(a, b gw.ProtocolType) bool {
	encrypted := func(p gw.ProtocolType) bool { return p == gw.HTTPSProtocolType || p == gw.TLSProtocolType }
	return a == b && a != gw.TCPProtocolType && a != gw.UDPProtocolType || encrypted(a) && encrypted(b)
}

func (c *compilation) judgeOne(l *listener) {
	kinds, known := served[l.protocol]
	if !known {
		l.accepted = verdict{string(gw.ListenerReasonUnsupportedProtocol), fmt.Sprintf("the protocol %q is not served", l.protocol)}
		l.kinds = []gw.RouteGroupKind{}
		return
	}
	group := gw.Group(gw.GroupName)
	l.kinds = []gw.RouteGroupKind{}
	if l.routes == nil || len(l.routes.Kinds) == 0 {
		for _, k := range kinds {
			l.kinds = append(l.kinds, gw.RouteGroupKind{Group: &group, Kind: k})
		}
	} else {
		for _, k := range l.routes.Kinds {
			if (k.Group == nil || *k.Group == gw.GroupName) && slices.Contains(kinds, k.Kind) {
				l.kinds = append(l.kinds, gw.RouteGroupKind{Group: &group, Kind: k.Kind})
			} else {
				l.resolved = verdict{string(gw.ListenerReasonInvalidRouteKinds), fmt.Sprintf("routes of kind %q cannot be served by a listener of protocol %s", k.Kind, l.protocol)}
			}
		}
	}
	if l.protocol == gw.HTTPSProtocolType || l.protocol == gw.TLSProtocolType {
		c.judgeTLS(l)
	}
}

// passthrough says whether connections are led on as they are.
func (l *listener) passthrough() bool {
	return l.protocol == gw.TLSProtocolType && l.tls != nil && l.tls.Mode != nil && *l.tls.Mode == gw.TLSModePassthrough
}

func (c *compilation) judgeTLS(l *listener) {
	if l.passthrough() {
		return
	}
	if l.tls == nil || len(l.tls.CertificateRefs) == 0 {
		l.resolved = verdict{string(gw.ListenerReasonInvalidCertificateRef), "the listener has no certificate"}
		return
	}
	if l.protocol == gw.HTTPSProtocolType && l.tls.Mode != nil && *l.tls.Mode == gw.TLSModePassthrough {
		l.accepted = verdict{string(gw.ListenerReasonUnsupportedValue), "a listener of protocol HTTPS ends TLS itself"}
		return
	}
	for _, ref := range l.tls.CertificateRefs {
		kind := "Gateway"
		if l.set != nil {
			kind = "ListenerSet"
		}
		cert, reason, message := c.certificateOf(grantFrom{kind, l.namespace}, ref)
		if reason != "" {
			l.resolved = verdict{reason, message}
			continue
		}
		l.certificates = append(l.certificates, cert)
	}
	v := validation(l.of.Gateway, l.port)
	if v == nil || l.protocol != gw.HTTPSProtocolType {
		return
	}
	pool, reason, message := c.authorities(l.of, v)
	if reason != "" {
		l.resolved = verdict{string(reason), message}
	}
	switch {
	case v.Mode == gw.AllowInsecureFallback:
		l.of.insecure, l.unverified = true, true
	case pool == nil:
		l.accepted, l.certificates = verdict{string(gw.ListenerReasonNoValidCACertificate), "there is no authority by which clients could be known"}, nil
	default:
		l.clientCAs = pool
	}
}

// certificate is that of a reference of a Gateway.
func (c *compilation) certificate(namespace string, ref gw.SecretObjectReference) (*tls.Certificate, string, string) {
	return c.certificateOf(grantFrom{"Gateway", namespace}, ref)
}

// certificateOf is the certificate that a reference names; reason says why there is none.
func (c *compilation) certificateOf(from grantFrom, ref gw.SecretObjectReference) (cert *tls.Certificate, reason, message string) {
	invalid := string(gw.ListenerReasonInvalidCertificateRef)
	if ref.Group != nil && *ref.Group != "" || ref.Kind != nil && *ref.Kind != "Secret" {
		return nil, invalid, "certificates are read from Secrets"
	}
	name := types.NamespacedName{Namespace: from.namespace, Name: string(ref.Name)}
	if ref.Namespace != nil {
		name.Namespace = string(*ref.Namespace)
	}
	if !c.grants.allow(from, "Secret", name) {
		return nil, string(gw.ListenerReasonRefNotPermitted), "no ReferenceGrant allows the reference to Secret " + name.String()
	}
	secret := c.Secret(name)
	if secret == nil {
		return nil, invalid, "Secret " + name.String() + " " + c.missing("secrets", name)
	}
	cert, err := c.Parsed.Certificate(secret)
	if err != nil {
		return nil, invalid, "Secret " + name.String() + ": " + err.Error()
	}
	return cert, "", ""
}

// missing says why a Secret or ConfigMap is not there.
func (c *compilation) missing(resource string, name types.NamespacedName) string {
	if why := c.Left[references.Object{Resource: resource, Namespace: name.Namespace, Name: name.Name}]; why != "" {
		return "is not read: " + why
	}
	return "was not found"
}

// maxAuthorities bounds the certificates of one object.
const maxAuthorities = 1000

// authoritiesIn are the certificates in ca.crt of a ConfigMap.
func (c *compilation) authoritiesIn(name types.NamespacedName) (all []*x509.Certificate, err error) {
	m := c.ConfigMap(name)
	if m == nil {
		return nil, fmt.Errorf("ConfigMap %s %s", name, c.missing("configmaps", name))
	}
	text := []byte(m.Data["ca.crt"])
	for len(text) > 0 && len(all) < maxAuthorities {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			all = append(all, cert)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("ConfigMap %s holds no certificate under ca.crt", name)
	}
	return all, nil
}
