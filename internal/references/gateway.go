package references

import (
	"iter"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"
)

// GatewayController is the controller of the GatewayClasses that the gateway serves.
const GatewayController gw.GatewayController = "knarr.io/gateway"

// A Reference is an object that one in Namespace of that kind names.
type Reference struct {
	Object
	Kind string // of the object that refers
	From string // its namespace
}

// OfGateway are the Secrets and ConfigMaps that a Gateway names.
func OfGateway(g *gw.Gateway) iter.Seq[Reference] {
	return func(yield func(Reference) bool) {
		for i := range g.Spec.Listeners {
			if !certificates(g.Spec.Listeners[i].TLS, "Gateway", g.Namespace, yield) {
				return
			}
		}
		t := g.Spec.TLS
		if t == nil {
			return
		}
		if t.Backend != nil && t.Backend.ClientCertificateRef != nil && !secret(t.Backend.ClientCertificateRef, "Gateway", g.Namespace, yield) {
			return
		}
		if t.Frontend == nil {
			return
		}
		all := []*gw.FrontendTLSValidation{t.Frontend.Default.Validation}
		for i := range t.Frontend.PerPort {
			all = append(all, t.Frontend.PerPort[i].TLS.Validation)
		}
		for _, v := range all {
			if v == nil {
				continue
			}
			for _, ref := range v.CACertificateRefs {
				if ref.Group == "" && ref.Kind == "ConfigMap" && !yield(Reference{Object{"configmaps", namespaceOf(ref.Namespace, g.Namespace), string(ref.Name)}, "Gateway", g.Namespace}) {
					return
				}
			}
		}
	}
}

// OfListenerSet are the Secrets that a ListenerSet names.
func OfListenerSet(s *gw.ListenerSet) iter.Seq[Reference] {
	return func(yield func(Reference) bool) {
		for i := range s.Spec.Listeners {
			if !certificates(s.Spec.Listeners[i].TLS, "ListenerSet", s.Namespace, yield) {
				return
			}
		}
	}
}

// OfPolicy are the ConfigMaps that a BackendTLSPolicy names.
func OfPolicy(p *gw.BackendTLSPolicy) iter.Seq[Reference] {
	return func(yield func(Reference) bool) {
		for _, ref := range p.Spec.Validation.CACertificateRefs {
			if ref.Group == "" && ref.Kind == "ConfigMap" && !yield(Reference{Object{"configmaps", p.Namespace, string(ref.Name)}, "BackendTLSPolicy", p.Namespace}) {
				return
			}
		}
	}
}

// IssuedForGateway are the names of the Secrets, in its namespace, that certificates of a
// Gateway are kept in which are got by ACME.
func IssuedForGateway(g *gw.Gateway) iter.Seq[string] {
	return func(yield func(string) bool) {
		if g.Annotations[ACMEAnnotation] != "true" {
			return
		}
		for i := range g.Spec.Listeners {
			for name := range IssuedForListener(&g.Spec.Listeners[i], g.Namespace) {
				if !yield(name) {
					return
				}
			}
		}
	}
}

// IssuedForListener are those of one listener of such a Gateway.
func IssuedForListener(l *gw.Listener, namespace string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if l.Protocol != gw.HTTPSProtocolType && l.Protocol != gw.TLSProtocolType || l.TLS == nil || l.TLS.Mode != nil && *l.TLS.Mode == gw.TLSModePassthrough {
			return
		}
		certificates(l.TLS, "Gateway", namespace, func(r Reference) bool { return r.Namespace != namespace || yield(r.Name) })
	}
}

func certificates(t *gw.ListenerTLSConfig, kind, namespace string, yield func(Reference) bool) bool {
	if t == nil {
		return true
	}
	for i := range t.CertificateRefs {
		if !secret(&t.CertificateRefs[i], kind, namespace, yield) {
			return false
		}
	}
	return true
}

func secret(ref *gw.SecretObjectReference, kind, namespace string, yield func(Reference) bool) bool {
	if ref.Group != nil && *ref.Group != "" || ref.Kind != nil && *ref.Kind != "Secret" {
		return true
	}
	return yield(Reference{Object{"secrets", namespaceOf(ref.Namespace, namespace), string(ref.Name)}, kind, namespace})
}

func namespaceOf(given *gw.Namespace, own string) string {
	if given != nil && *given != "" {
		return string(*given)
	}
	return own
}

// Granted says whether a ReferenceGrant in the namespace of what is referred to allows
// objects of a kind of the Gateway API, in a namespace, to refer to it.
func Granted(g *gw.ReferenceGrant, kind, from, group, toKind, toName string) bool {
	return granted(g, gw.GroupName, kind, from, group, toKind, toName)
}

// GrantedIngress says whether a ReferenceGrant in the namespace of a Service allows the
// Ingresses of another namespace to refer to it.
func GrantedIngress(g *gw.ReferenceGrant, from, service string) bool {
	return granted(g, networkingv1.GroupName, "Ingress", from, "", "Service", service)
}

func granted(g *gw.ReferenceGrant, fromGroup gw.Group, kind, from, group, toKind, toName string) bool {
	for _, f := range g.Spec.From {
		if f.Group != fromGroup || string(f.Kind) != kind || string(f.Namespace) != from {
			continue
		}
		for _, t := range g.Spec.To {
			if string(t.Group) == group && string(t.Kind) == toKind && (t.Name == nil || *t.Name == "" || string(*t.Name) == toName) {
				return true
			}
		}
	}
	return false
}

// ParentOf is the Gateway of a ListenerSet.
func ParentOf(s *gw.ListenerSet) types.NamespacedName {
	return types.NamespacedName{Namespace: namespaceOf(s.Spec.ParentRef.Namespace, s.Namespace), Name: string(s.Spec.ParentRef.Name)}
}
