package gatewayapi

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"
)

// A subject is a route of any kind in a compilation.
type subject struct {
	metav1.Object
	kind      gw.Kind
	name      types.NamespacedName
	parents   []gw.ParentReference
	hostnames []gw.Hostname // nil for kinds that have none
	hosted    bool          // the kind has host names
	counted   int           // of its matches, at the listener that has most
}

// An attachment is a listener that a route is attached to, with the hosts that it has there;
// none means all of the listener's.
type attachment struct {
	*listener
	hosts []string
}

// maxParents bounds the parents of one route, as the API does.
const maxParents = 32

// attach finds the listeners of each parent that is ours, and calls accept with them: it
// gives the conditions that the route itself decides.
func (c *compilation) attach(s *subject, resolved func(at []attachment) (accepted, references verdict)) {
	var all []gw.RouteParentStatus
	for i := range s.parents[:min(len(s.parents), maxParents)] {
		ref := &s.parents[i]
		candidates, ours, known := c.listenersOf(s, ref)
		if !ours {
			continue
		}
		at, refusal := []attachment{}, verdict{string(gw.RouteReasonNoMatchingParent), "the parent has no such listener"}
		if known {
			at, refusal = c.fitting(s, ref, candidates)
		}
		var accepted, references verdict
		if err := guard(s, string(s.kind), func() { accepted, references = resolved(at) }); err != nil {
			accepted = verdict{string(gw.RouteReasonUnsupportedValue), "reading the route failed: " + err.Error()}
			c.made.again = false
		}
		if refusal.reason != "" {
			accepted = refusal
		} else {
			for _, a := range at {
				c.made.attached = append(c.made.attached, a.slot)
			}
		}
		g := s.GetGeneration()
		conditions := []metav1.Condition{
			condition(g, string(gw.RouteConditionAccepted), true, string(gw.RouteReasonAccepted), "the route is served"),
			condition(g, string(gw.RouteConditionResolvedRefs), true, string(gw.RouteReasonResolvedRefs), "all references are resolved"),
		}
		for i, v := range []verdict{accepted, references} {
			if v.reason != "" {
				conditions[i] = condition(g, conditions[i].Type, false, v.reason, v.message)
			}
		}
		all = append(all, gw.RouteParentStatus{ParentRef: *ref, ControllerName: Controller, Conditions: conditions})
	}
	c.made.status = all
}

// listenersOf are those of a parent: ours says that it is a Gateway or ListenerSet of this
// implementation, known that it can have routes.
func (c *compilation) listenersOf(s *subject, ref *gw.ParentReference) (all []*listener, ours, known bool) {
	if ref.Group != nil && *ref.Group != gw.GroupName {
		return nil, false, false
	}
	name := types.NamespacedName{Namespace: s.name.Namespace, Name: string(ref.Name)}
	if ref.Namespace != nil {
		name.Namespace = string(*ref.Namespace)
	}
	switch {
	case ref.Kind == nil || *ref.Kind == "Gateway":
		g := c.gateways[name]
		if g == nil {
			return nil, false, false
		}
		for _, l := range g.listeners {
			if l.set == nil {
				all = append(all, l)
			}
		}
		return all, true, true
	case *ref.Kind == "ListenerSet":
		set := c.sets[name]
		if set == nil {
			return nil, false, false
		}
		return set.listeners, true, set.allowed
	}
	return nil, false, false
}

// fitting are the listeners of a parent that a route is attached to, or why there are none.
func (c *compilation) fitting(s *subject, ref *gw.ParentReference, candidates []*listener) (at []attachment, refusal verdict) {
	refusal = verdict{string(gw.RouteReasonNoMatchingParent), "the parent has no such listener"}
	for _, l := range candidates {
		if ref.SectionName != nil && *ref.SectionName != l.name || ref.Port != nil && *ref.Port != l.port {
			continue
		}
		if refusal.reason == string(gw.RouteReasonNoMatchingParent) {
			refusal = verdict{string(gw.RouteReasonNotAllowedByListeners), "no listener of the parent takes routes of this kind and namespace"}
		}
		if !slices.ContainsFunc(l.kinds, func(k gw.RouteGroupKind) bool { return k.Kind == s.kind }) || !c.allowsRoute(l, s.name.Namespace) {
			continue
		}
		if !s.hosted {
			at = append(at, attachment{listener: l})
			continue
		}
		hosts, ok := intersect(s.hostnames, l.host())
		if !ok {
			refusal = verdict{string(gw.RouteReasonNoMatchingListenerHostname), "no host name of the route is one of the listener's"}
			continue
		}
		at = append(at, attachment{l, hosts})
	}
	if len(at) > 0 {
		refusal = verdict{}
	}
	return at, refusal
}

func (c *compilation) allowsRoute(l *listener, namespace string) bool {
	if l.routes == nil || l.routes.Namespaces == nil || l.routes.Namespaces.From == nil {
		return l.namespace == namespace
	}
	return c.allowsNamespace(*l.routes.Namespaces.From, l.routes.Namespaces.Selector, l.namespace, namespace)
}

// intersect are the hosts that a route has at a listener: none, with ok, means all of the
// listener's.
func intersect(of []gw.Hostname, host string) (all []string, ok bool) {
	if len(of) == 0 {
		return nil, true
	}
	for _, h := range of {
		switch r := strings.ToLower(string(h)); {
		case host == "" || r == host || covers(host, r):
			all = append(all, r)
		case covers(r, host):
			all = append(all, host)
		}
	}
	return all, len(all) > 0
}

// covers says whether a wildcard has another host, or wildcard, below it.
func covers(wildcard, host string) bool {
	suffix, ok := strings.CutPrefix(wildcard, "*")
	if !ok || suffix == "" {
		return false
	}
	return strings.HasSuffix(host, suffix) && len(host) > len(suffix)
}
