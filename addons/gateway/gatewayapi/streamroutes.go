package gatewayapi

import (
	corev1 "k8s.io/api/core/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/route"
)

// streamRoutes attaches the routes of connections and datagrams.
func (c *compilation) streamRoutes() {
	eachRoute(c, "TLSRoute", c.TLSRoutes, func(of *gw.TLSRoute) {
		s := &subject{Object: of, kind: "TLSRoute", name: nameOf(of), parents: of.Spec.ParentRefs, hostnames: of.Spec.Hostnames, hosted: true}
		var refs []gw.BackendRef
		for _, r := range of.Spec.Rules {
			refs = append(refs, r.BackendRefs...)
		}
		c.stream(s, refs, corev1.ProtocolTCP)
	})
	eachRoute(c, "TCPRoute", c.TCPRoutes, func(of *gw.TCPRoute) {
		var refs []gw.BackendRef
		for _, r := range of.Spec.Rules {
			refs = append(refs, r.BackendRefs...)
		}
		c.stream(&subject{Object: of, kind: "TCPRoute", name: nameOf(of), parents: of.Spec.ParentRefs}, refs, corev1.ProtocolTCP)
	})
	eachRoute(c, "UDPRoute", c.UDPRoutes, func(of *gw.UDPRoute) {
		var refs []gw.BackendRef
		for _, r := range of.Spec.Rules {
			refs = append(refs, r.BackendRefs...)
		}
		c.stream(&subject{Object: of, kind: "UDPRoute", name: nameOf(of), parents: of.Spec.ParentRefs}, refs, corev1.ProtocolUDP)
	})
}

// stream attaches one whose bytes are passed on.
func (c *compilation) stream(s *subject, refs []gw.BackendRef, transport corev1.Protocol) {
	from := grantFrom{string(s.kind), s.name.Namespace}
	c.attach(s, func(at []attachment) (accepted, references verdict) {
		for _, a := range at {
			var to []route.Share
			to, references = c.shares(a.of, from, refs, transport, spokenRaw)
			c.made.streams = append(c.made.streams, placed[route.Stream]{a.slot, route.Stream{Name: string(s.kind) + " " + s.name.String(), Created: s.GetCreationTimestamp().Time, Hosts: a.hosts, Backends: to}})
		}
		if len(at) == 0 { // its references are judged all the same
			_, references = c.shares(&gateway{}, from, refs, transport, spokenRaw)
		}
		return accepted, references
	})
}
