package gatewayapi

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/ingress"
	"knarr/addons/gateway/route"
)

// A protocolOf says what a kind of route speaks to a port of a Service.
type protocolOf func(p *corev1.ServicePort) (route.BackendProtocol, error)

// spokenHTTP is that of HTTPRoutes.
func spokenHTTP(p *corev1.ServicePort) (route.BackendProtocol, error) {
	if p.AppProtocol != nil {
		switch *p.AppProtocol {
		case "kubernetes.io/h2c":
			return route.BackendH2C, nil
		case "kubernetes.io/wss", "https", "HTTPS":
			return route.BackendHTTPS, nil
		}
	}
	return route.BackendHTTP, nil
}

// spokenGRPC is that of GRPCRoutes.
func spokenGRPC(*corev1.ServicePort) (route.BackendProtocol, error) { return route.BackendH2C, nil }

// spokenRaw is that of routes that pass bytes on.
func spokenRaw(*corev1.ServicePort) (route.BackendProtocol, error) { return "", nil }

// backend is the name of the backend that a reference leads to for a Gateway, which is made
// if it is not there; otherwise why there is none.
func (c *compilation) backend(g *gateway, from grantFrom, ref *gw.BackendObjectReference, transport corev1.Protocol, spoken protocolOf) (string, verdict) {
	if ref.Group != nil && *ref.Group != "" || ref.Kind != nil && *ref.Kind != "Service" {
		return "", verdict{string(gw.RouteReasonInvalidKind), "backends are Services"}
	}
	name := types.NamespacedName{Namespace: from.namespace, Name: string(ref.Name)}
	if ref.Namespace != nil {
		name.Namespace = string(*ref.Namespace)
	}
	if !c.grants.allow(from, "Service", name) {
		return "", verdict{string(gw.RouteReasonRefNotPermitted), "no ReferenceGrant allows the reference to Service " + name.String()}
	}
	svc := c.Service(name)
	if svc == nil {
		return "", verdict{string(gw.RouteReasonBackendNotFound), "Service " + name.String() + " was not found"}
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return "", verdict{string(gw.RouteReasonBackendNotFound), "Service " + name.String() + " is of type ExternalName, which is not served"}
	}
	if ref.Port == nil {
		return "", verdict{string(gw.RouteReasonUnsupportedValue), "a backend needs a port"}
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if p.Port != *ref.Port || p.Protocol != transport && (p.Protocol != "" || transport != corev1.ProtocolTCP) {
			continue
		}
		protocol, err := spoken(p)
		if err != nil {
			return "", verdict{string(gw.RouteReasonUnsupportedProtocol), err.Error()}
		}
		as := route.Backend{Protocol: protocol}
		key := name.String() + ":" + strconv.Itoa(int(p.Port))
		if transport == corev1.ProtocolUDP {
			key += "/UDP"
		}
		if policy := c.policies.of(name, p.Name); policy != nil && protocol != "" {
			c.made.policies = append(c.made.policies, policyUse{policy.name, g.name})
			if policy.refused() {
				return "", verdict{string(gw.RouteReasonBackendNotFound), "the BackendTLSPolicy of Service " + name.String() + " cannot be followed"}
			}
			policy.apply(&as)
			as.Certificate = g.client
			key += " by " + policy.name.String()
			if g.client != nil {
				key += " from " + g.name.String()
			}
		}
		if as.Protocol != "" && as.Protocol != route.BackendHTTP {
			key += " " + string(as.Protocol)
		}
		c.made.backends = append(c.made.backends, ingress.Made{Key: key, As: as, Target: ingress.Target{Service: name, Port: p.Name, UDP: transport == corev1.ProtocolUDP}})
		return key, verdict{}
	}
	return "", verdict{string(gw.RouteReasonBackendNotFound), fmt.Sprintf("Service %s has no port %d", name, *ref.Port)}
}

// shares are the backends of a rule: those that cannot be reached have their part of the
// requests as well. The last fault is what the status tells.
func (c *compilation) shares(g *gateway, from grantFrom, refs []gw.BackendRef, transport corev1.Protocol, spoken protocolOf) (all []route.Share, fault verdict) {
	for i := range refs {
		weight := 1
		if refs[i].Weight != nil {
			weight = int(*refs[i].Weight)
		}
		name, why := c.backend(g, from, &refs[i].BackendObjectReference, transport, spoken)
		if why.reason != "" {
			fault = why
		}
		all = append(all, route.Share{Backend: name, Weight: weight, Invalid: why.reason != ""})
	}
	return all, fault
}
