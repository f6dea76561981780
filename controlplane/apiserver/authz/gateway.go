package authz

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/references"
)

// isGateway says that a user is the gateway of a node, or the server's.
func isGateway(u user.Info) bool {
	return slices.Contains(u.GetGroups(), references.GatewayGroup) ||
		u.GetName() == serviceaccount.MakeUsername(references.GatewayNamespace, references.GatewayAccount)
}

// gatewayReads lets a gateway read the Secrets and ConfigMaps that Ingresses name which it
// serves, each by its name: a node that was taken over opens no other.
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
	classes := n.cache.Resource(networkingv1.SchemeGroupVersion.WithResource("ingressclasses"))
	class := func(name string) *networkingv1.IngressClass {
		c, _ := watchcache.Read[*networkingv1.IngressClass](classes, name)
		return c
	}
	standard := func() bool {
		return references.Standard(func(yield func(*networkingv1.IngressClass) bool) { watchcache.Each(classes, "", yield) })
	}
	found := false
	watchcache.Each(n.cache.Resource(networkingv1.SchemeGroupVersion.WithResource("ingresses")), a.Namespace, func(ing *networkingv1.Ingress) bool {
		for name := range named(ing) {
			if name == a.Name && references.Ours(ing, class, standard) {
				found = true
			}
		}
		return !found
	})
	if found {
		return true, ""
	}
	return false, "no Ingress that the gateway serves names this object"
}
