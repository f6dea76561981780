// Package references says which Secrets and ConfigMaps an Ingress names: those that a
// gateway reads of it, and that the authorizer therefore lets a node's gateway read. It
// reads the objects that it is given and writes nothing.
package references

import (
	"iter"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// Whom gateways are towards the API server: a node's part is a user of the group, whose
// name ends with the node's, and the server's part is a service account.
const (
	GatewayGroup, GatewayUserPrefix  = "system:knarr-gateways", "system:knarr-gateway:"
	GatewayNamespace, GatewayAccount = "kube-system", "gateway"
)

// An Object is a Secret or ConfigMap.
type Object struct{ Resource, Namespace, Name string }

// Controller is the controller of the IngressClasses that the gateway serves.
const Controller = "knarr.io/ingress"

// HTTP3Annotation, with the value "true", asks that the hosts of an Ingress, or the HTTPS
// listeners of a Gateway, are served by HTTP/3 as well.
const HTTP3Annotation = "knarr.io/http3"

// ACMEAnnotation, with the value "true", asks that the certificates of an Ingress or of a
// Gateway are got by ACME. ACMEAccount is the Secret of the account, in GatewayNamespace.
const ACMEAnnotation, ACMEAccount = "knarr.io/acme", "knarr-acme-account"

// Issued are the names of the Secrets, in its namespace, that certificates of an Ingress
// are kept in which are got by ACME.
func Issued(ing *networkingv1.Ingress) iter.Seq[string] {
	return func(yield func(string) bool) {
		if ing.Annotations[ACMEAnnotation] != "true" {
			return
		}
		for _, t := range ing.Spec.TLS {
			if t.SecretName != "" && !yield(t.SecretName) {
				return
			}
		}
	}
}

// ClassAnnotation named an Ingress' class before there was a field for it.
const ClassAnnotation = "kubernetes.io/ingress.class"

// DefaultClass marks the IngressClass of Ingresses that name none.
const DefaultClass = networkingv1.AnnotationIsDefaultIngressClass

// Prefix begins the annotations that ingress-nginx reads.
const Prefix = "nginx.ingress.kubernetes.io/"

// Ours says whether an Ingress is one that the gateway serves: one of a class of ours,
// or without a class where ours is the default.
func Ours(ing *networkingv1.Ingress, class func(name string) *networkingv1.IngressClass, standard func() bool) bool {
	name := ing.Annotations[ClassAnnotation]
	if ing.Spec.IngressClassName != nil {
		name = *ing.Spec.IngressClassName
	} else if name == "" {
		return standard()
	}
	c := class(name)
	return c != nil && c.Spec.Controller == Controller
}

// Standard says whether a class of ours is the one of Ingresses that name none.
func Standard(classes iter.Seq[*networkingv1.IngressClass]) bool {
	for c := range classes {
		if c.Spec.Controller == Controller && c.Annotations[DefaultClass] == "true" {
			return true
		}
	}
	return false
}

// Secrets are the names of the Secrets, in its namespace, that an Ingress names.
func Secrets(ing *networkingv1.Ingress) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, t := range ing.Spec.TLS {
			if t.SecretName != "" && !yield(t.SecretName) {
				return
			}
		}
		for _, a := range []string{Prefix + "auth-secret", Prefix + "auth-tls-secret", Prefix + "proxy-ssl-secret"} {
			if name, ok := Local(ing, ing.Annotations[a]); ok && !yield(name) {
				return
			}
		}
	}
}

// ConfigMaps are the names of the ConfigMaps, in its namespace, that an Ingress names.
func ConfigMaps(ing *networkingv1.Ingress) iter.Seq[string] {
	return func(yield func(string) bool) {
		if name, ok := Local(ing, ing.Annotations[Prefix+"custom-headers"]); ok {
			yield(name)
		}
	}
}

// Local is the name in NAME or NAMESPACE/NAME, if that is the Ingress' own namespace:
// an Ingress opens nothing of another one.
func Local(ing *networkingv1.Ingress, value string) (name string, ok bool) {
	namespace, name, qualified := strings.Cut(strings.TrimSpace(value), "/")
	if !qualified {
		return namespace, namespace != ""
	}
	return name, name != "" && namespace == ing.Namespace
}
