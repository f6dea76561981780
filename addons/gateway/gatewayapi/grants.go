package gatewayapi

import (
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/internal/references"
)

// A grantFrom is whose references a ReferenceGrant allows: objects of a kind in a namespace.
type grantFrom struct{ kind, namespace string }

// grants are the ReferenceGrants, by namespace.
type grants map[string][]*gw.ReferenceGrant

func grantsOf(all []*gw.ReferenceGrant) grants {
	g := grants{}
	for _, one := range all {
		g[one.Namespace] = append(g[one.Namespace], one)
	}
	return g
}

// allow says whether an object may refer to another one: in its own namespace, or where a
// ReferenceGrant says so.
func (g grants) allow(from grantFrom, kind string, to types.NamespacedName) bool {
	if from.namespace == to.Namespace {
		return true
	}
	for _, one := range g[to.Namespace] {
		if references.Granted(one, from.kind, from.namespace, "", kind, to.Name) {
			return true
		}
	}
	return false
}

// References are the Secrets and ConfigMaps that are read: what Gateways of ours, the
// ListenerSets of Gateways and policies name, where they may.
func References(in *Input) (all []references.Object) {
	granted := grantsOf(in.Grants)
	ours := map[gw.ObjectName]bool{}
	for _, class := range in.Classes {
		ours[gw.ObjectName(class.Name)] = class.Spec.ControllerName == Controller
	}
	add := func(r references.Reference) bool {
		kind := map[string]string{"secrets": "Secret", "configmaps": "ConfigMap"}[r.Resource]
		if granted.allow(grantFrom{r.Kind, r.From}, kind, types.NamespacedName{Namespace: r.Namespace, Name: r.Name}) {
			all = append(all, r.Object)
		}
		return true
	}
	gateways := map[types.NamespacedName]bool{}
	for _, g := range in.Gateways {
		if ours[g.Spec.GatewayClassName] {
			gateways[nameOf(g)] = true
			references.OfGateway(g)(add)
		}
	}
	for _, s := range in.ListenerSets {
		if gateways[references.ParentOf(s)] {
			references.OfListenerSet(s)(add)
		}
	}
	for _, p := range in.Policies {
		references.OfPolicy(p)(add)
	}
	return all
}
