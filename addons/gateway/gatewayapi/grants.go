package gatewayapi

import (
	"iter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
// ListenerSets of Gateways and policies name, where they may, and since when they exist.
func References(in *Input) iter.Seq2[references.Reference, time.Time] {
	return func(yield func(references.Reference, time.Time) bool) {
		granted := grantsOf(in.Grants)
		ours := map[gw.ObjectName]bool{}
		for _, class := range in.Classes {
			ours[gw.ObjectName(class.Name)] = class.Spec.ControllerName == Controller
		}
		ended := false
		add := func(of metav1.Object, refs iter.Seq[references.Reference]) {
			for r := range refs {
				kind := map[string]string{"secrets": "Secret", "configmaps": "ConfigMap"}[r.Resource]
				if ended || granted.allow(grantFrom{r.Kind, r.From}, kind, types.NamespacedName{Namespace: r.Namespace, Name: r.Name}) && !yield(r, of.GetCreationTimestamp().Time) {
					ended = true
					return
				}
			}
		}
		gateways := map[types.NamespacedName]bool{}
		for _, g := range in.Gateways {
			if ours[g.Spec.GatewayClassName] {
				gateways[nameOf(g)] = true
				add(g, references.OfGateway(g))
			}
		}
		for _, s := range in.ListenerSets {
			if gateways[references.ParentOf(s)] {
				add(s, references.OfListenerSet(s))
			}
		}
		for _, p := range in.Policies {
			add(p, references.OfPolicy(p))
		}
	}
}
