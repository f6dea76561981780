package authz

import (
	"iter"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/references"
)

// isGateway says that a user is the gateway of a node, or the server's.
func isGateway(u user.Info) bool {
	return slices.Contains(u.GetGroups(), references.GatewayGroup) ||
		u.GetName() == serviceaccount.MakeUsername(references.GatewayNamespace, references.GatewayAccount)
}

// gatewayReads lets a gateway read the Secrets and ConfigMaps that Ingresses and Gateways
// name which it serves, each by its name: a node that was taken over opens no other.
func (n *Node) gatewayReads(a *Attributes) (bool, string) {
	if !a.IsResource || a.Group != "" || a.Resource != "secrets" && a.Resource != "configmaps" {
		return false, ""
	}
	if !oneOf(a.Verb, "get", "list", "watch") || a.Subresource != "" || a.Namespace == "" || a.Name == "" {
		return false, "a gateway can only read single objects of this type"
	}
	named := references.Secrets
	if a.Resource == "configmaps" {
		named = references.ConfigMaps
	}
	if n.ingressNames(a, named) || n.gatewayRefers(a) {
		return true, ""
	}
	return false, "no Ingress and no Gateway that the gateway serves names this object"
}

// gatewayIssues lets the server's gateway apply the Secrets of certificates that it gets by
// ACME, each by its name, and read and apply that of its account. Who applies what is not
// there creates it; a create of its own has no name here.
func (n *Node) gatewayIssues(a *Attributes) bool {
	if a.User.GetName() != serviceaccount.MakeUsername(references.GatewayNamespace, references.GatewayAccount) ||
		!a.IsResource || a.Group != "" || a.Resource != "secrets" || a.Subresource != "" || a.Namespace == "" || a.Name == "" {
		return false
	}
	if a.Namespace == references.GatewayNamespace && a.Name == references.ACMEAccount {
		return oneOf(a.Verb, "get", "patch", "create")
	}
	return oneOf(a.Verb, "patch", "create") && (n.ingressNames(a, references.Issued) || n.gatewayIssued(a))
}

// gatewayIssued says whether a Gateway of a class of ours wants the Secret to be got by ACME.
func (n *Node) gatewayIssued(a *Attributes) (found bool) {
	eachOfGatewayAPI(n.cache, "gateways", a.Namespace, func(g *gw.Gateway) bool {
		for name := range references.IssuedForGateway(g) {
			found = found || name == a.Name
		}
		found = found && n.servesGateway(g)
		return !found
	})
	return found
}

// servesGateway says whether a Gateway is of a class of ours.
func (n *Node) servesGateway(g *gw.Gateway) bool {
	class := &gw.GatewayClass{}
	return oneOfGatewayAPI(n.cache, "gatewayclasses", string(g.Spec.GatewayClassName), class) && class.Spec.ControllerName == references.GatewayController
}

// ingressNames says whether an Ingress that the gateway serves names the object.
func (n *Node) ingressNames(a *Attributes, named func(*networkingv1.Ingress) iter.Seq[string]) (found bool) {
	classes := n.cache.Resource(networkingv1.SchemeGroupVersion.WithResource("ingressclasses"))
	class := func(name string) *networkingv1.IngressClass {
		c, _ := watchcache.Read[*networkingv1.IngressClass](classes, name)
		return c
	}
	standard := func() bool {
		return references.Standard(func(yield func(*networkingv1.IngressClass) bool) { watchcache.Each(classes, "", yield) })
	}
	watchcache.Each(n.cache.Resource(networkingv1.SchemeGroupVersion.WithResource("ingresses")), a.Namespace, func(ing *networkingv1.Ingress) bool {
		for name := range named(ing) {
			if name == a.Name && references.Ours(ing, class, standard) {
				found = true
			}
		}
		return !found
	})
	return found
}

// gatewayRefers says whether a Gateway of a class of ours, a ListenerSet of one or a
// BackendTLSPolicy names the object, and may.
func (n *Node) gatewayRefers(a *Attributes) bool {
	wanted := references.Object{Resource: a.Resource, Namespace: a.Namespace, Name: a.Name}
	names := func(all iter.Seq[references.Reference]) bool {
		for r := range all {
			if r.Object == wanted && (r.From == r.Namespace || n.granted(r)) {
				return true
			}
		}
		return false
	}
	found, ours := false, map[types.NamespacedName]bool{}
	eachOfGatewayAPI(n.cache, "gateways", "", func(g *gw.Gateway) bool {
		if !n.servesGateway(g) {
			return true
		}
		ours[types.NamespacedName{Namespace: g.Namespace, Name: g.Name}] = true
		found = names(references.OfGateway(g))
		return !found
	})
	if !found {
		eachOfGatewayAPI(n.cache, "listenersets", "", func(s *gw.ListenerSet) bool {
			found = ours[references.ParentOf(s)] && names(references.OfListenerSet(s))
			return !found
		})
	}
	if !found {
		eachOfGatewayAPI(n.cache, "backendtlspolicies", a.Namespace, func(p *gw.BackendTLSPolicy) bool {
			found = names(references.OfPolicy(p))
			return !found
		})
	}
	return found
}

// granted says whether a ReferenceGrant allows a reference into another namespace.
func (n *Node) granted(r references.Reference) (ok bool) {
	kind := map[string]string{"secrets": "Secret", "configmaps": "ConfigMap"}[r.Resource]
	eachOfGatewayAPI(n.cache, "referencegrants", r.Namespace, func(g *gw.ReferenceGrant) bool {
		ok = references.Granted(g, r.Kind, r.From, "", kind, r.Name)
		return !ok
	})
	return ok
}

// ofGatewayAPI is a custom kind as it is stored, in whichever version.
func ofGatewayAPI(cache *watchcache.Cache, plural string) *watchcache.Resource {
	return cache.Stored()[gw.SchemeGroupVersion.WithResource(plural).GroupResource()]
}

// eachOfGatewayAPI visits the objects of a custom kind, as far as they can be read.
func eachOfGatewayAPI[T any](cache *watchcache.Cache, plural, namespace string, visit func(*T) bool) {
	watchcache.Each(ofGatewayAPI(cache, plural), namespace, func(u *unstructured.Unstructured) bool {
		var o T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
			return true
		}
		return visit(&o)
	})
}

func oneOfGatewayAPI(cache *watchcache.Cache, plural, name string, to any) bool {
	u, ok := watchcache.Read[*unstructured.Unstructured](ofGatewayAPI(cache, plural), name)
	return ok && runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, to) == nil
}
