package gatewayapi

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/ingress"
	"knarr/addons/gateway/route"
	"knarr/internal/references"
)

// A Known is what the compilation before has made. As long as Gateways and what goes with them
// stay, the next one makes the routes anew that have changed.
type Known struct {
	env    *environment
	slots  map[slotKey]*slot
	routes map[string]*outcomes // by kind
	asked  map[references.Object]int
	shared *ingress.Shared
	counts map[string]*count
	round  int
}

// A count is how many matches the routes of a namespace have so far in a compilation.
type count struct{ paths, round int }

// count is that of a namespace, from nothing in each compilation.
func (k *Known) count(namespace string) *count {
	n := k.counts[namespace]
	if n == nil {
		n = &count{}
		k.counts[namespace] = n
	}
	return n
}

// now is the count in this compilation.
func (n *count) now(round int) *int {
	if n.round != round {
		n.paths, n.round = 0, round
	}
	return &n.paths
}

// NewKnown is empty.
func NewKnown() *Known {
	return &Known{routes: map[string]*outcomes{}, asked: map[references.Object]int{}, counts: map[string]*count{}, shared: ingress.NewShared()}
}

// Asks says whether what is known of routes depends on an object.
func (k *Known) Asks(o references.Object) bool { return k.asked[o] > 0 }

// A slotKey is a listener's place in its Gateway.
type slotKey struct {
	gateway types.NamespacedName
	at      int
}

// A slot is such a place, and the listener that is there in this compilation.
type slot struct{ now *listener }

// An environment is what all routes depend on.
type environment struct {
	objects    []metav1.Object // classes, Gateways, ListenerSets, grants and policies, in order
	left       map[references.Object]string
	found      map[references.Object]metav1.Object // Secrets and ConfigMaps
	namespaces map[string]map[string]string        // their labels
}

func newEnvironment(in *Input) *environment {
	return &environment{objects: objectsOf(in), left: in.Left, found: map[references.Object]metav1.Object{}, namespaces: map[string]map[string]string{}}
}

func objectsOf(in *Input) (all []metav1.Object) {
	all = appendAll(all, in.Classes)
	all = appendAll(all, in.Gateways)
	all = appendAll(all, in.ListenerSets)
	all = appendAll(all, in.Grants)
	return appendAll(all, in.Policies)
}

func appendAll[T metav1.Object](all []metav1.Object, more []T) []metav1.Object {
	for _, o := range more {
		all = append(all, o)
	}
	return all
}

// holds says whether all is as it was.
func (e *environment) holds(in *Input) bool {
	if e == nil || !maps.Equal(e.left, in.Left) || !slices.EqualFunc(e.objects, objectsOf(in), sameWish) {
		return false
	}
	for o, is := range e.found {
		if in.find(o) != is {
			return false
		}
	}
	for name, labels := range e.namespaces {
		if now := in.Namespace(name); (now == nil) != (labels == nil) || !maps.Equal(now, labels) {
			return false
		}
	}
	return true
}

// find is what a Secret or ConfigMap is now.
func (in *Input) find(o references.Object) metav1.Object {
	name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	if o.Resource == "secrets" {
		return in.Secret(name)
	}
	return in.ConfigMap(name)
}

// sameWish says whether no more than the status, or the labels, of an object has changed.
func sameWish(a, b metav1.Object) bool {
	if a == b {
		return true
	}
	at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return a.GetUID() != "" && a.GetUID() == b.GetUID() && a.GetGeneration() != 0 && a.GetGeneration() == b.GetGeneration() && at.Equal(&bt) && maps.Equal(a.GetAnnotations(), b.GetAnnotations())
}

// noting makes a compilation note what it asks for.
func (c *compilation) noting(in *Input) {
	env := c.known.env
	c.Secret = func(name types.NamespacedName) *corev1.Secret {
		o := in.Secret(name)
		env.found[references.Object{Resource: "secrets", Namespace: name.Namespace, Name: name.Name}] = o
		return o
	}
	c.ConfigMap = func(name types.NamespacedName) *corev1.ConfigMap {
		o := in.ConfigMap(name)
		env.found[references.Object{Resource: "configmaps", Namespace: name.Namespace, Name: name.Name}] = o
		return o
	}
	c.Namespace = func(name string) map[string]string {
		labels := in.Namespace(name)
		env.namespaces[name] = labels
		return labels
	}
	c.Service = func(name types.NamespacedName) *corev1.Service {
		o := in.Service(name)
		c.made.asked = append(c.made.asked, askedService{name, o})
		return o
	}
}

// An outcome is what became of a route.
type outcome struct {
	name     types.NamespacedName
	status   []gw.RouteParentStatus
	attached []*slot // whose listeners count it
	routes   []placed[*route.Route]
	streams  []placed[route.Stream]
	counted  int // matches, of those of its namespace
	count    *count
	backends []ingress.Made
	policies []policyUse
	asked    []askedService
	uses     []ingress.Use
	// again says that it may be taken over: it has failed by nothing but itself.
	again bool
	round int // the last one that had it
	held  bool
}

// A placed is a route or stream at a listener.
type placed[T any] struct {
	at *slot
	of T
}

// A policyUse is a policy that a Gateway's route leads by.
type policyUse struct{ policy, gateway types.NamespacedName }

type askedService struct {
	name types.NamespacedName
	is   *corev1.Service
}

func (a *askedService) object() references.Object {
	return references.Object{Resource: "services", Namespace: a.name.Namespace, Name: a.name.Name}
}

// outcomes are those of one kind's routes, in order.
type outcomes struct {
	objects any // a list of them
	all     []*outcome
}

// holds says whether a route becomes what it became.
func (c *compilation) holds(o *outcome, in *Input) bool {
	if !o.again || *o.count.now(c.known.round)+o.counted > ingress.MaxPathsEach {
		return false
	}
	for i := range o.asked {
		if a := &o.asked[i]; (in.Changed == nil || in.Changed(a.object())) && in.Service(a.name) != a.is {
			return false
		}
	}
	return true
}

// eachRoute compiles the routes of a kind, older ones before younger ones: those that have
// changed by compile, which fills in c.made.
func eachRoute[T interface {
	comparable
	metav1.Object
}](c *compilation, kind string, all []T, compile func(T)) {
	k := c.known.routes[kind]
	if k == nil {
		k = &outcomes{}
		c.known.routes[kind] = k
	}
	before, _ := k.objects.([]T)
	from, to, nowTo := route.Changed(before, all)
	if !isInOrder(all[max(from-1, 0):min(nowTo+1, len(all))]) { // the rest was
		all = inOrder(all)
		from, to, nowTo = route.Changed(before, all)
	}
	moved := make(map[types.NamespacedName]int, to-from)
	for i := from; i < to; i++ {
		moved[nameOf(before[i])] = i
	}
	now := make([]*outcome, len(all))
	for i, of := range all {
		var o *outcome
		switch {
		case !c.same:
		case i < from:
			o = k.all[i]
		case i >= nowTo:
			o = k.all[i-nowTo+to]
		default:
			if at, there := moved[nameOf(of)]; there && sameWish(before[at], of) {
				o = k.all[at]
			}
		}
		if o != nil && c.holds(o, c.in) {
			*o.count.now(c.known.round) += o.counted
		} else {
			o = &outcome{name: nameOf(of), again: true, count: c.known.count(of.GetNamespace())}
			c.made = o
			c.Parsed.Uses()
			compile(of)
			o.uses = c.Parsed.Uses()
		}
		o.round = c.known.round
		now[i] = o
		c.put(kind, o)
	}
	for _, o := range k.all {
		if o.round != c.known.round {
			c.known.release(o)
		}
	}
	for _, o := range now {
		if !o.held {
			c.known.hold(o)
		}
	}
	k.objects, k.all = all, now
}

func (k *Known) hold(o *outcome) {
	o.held = true
	for i := range o.asked {
		k.asked[o.asked[i].object()]++
	}
	k.shared.Add(o.backends)
}

func (k *Known) release(o *outcome) {
	for i := range o.asked {
		if of := o.asked[i].object(); k.asked[of] > 1 {
			k.asked[of]--
		} else {
			delete(k.asked, of)
		}
	}
	k.shared.Remove(o.backends)
}

// put makes a route's outcome a part of this compilation.
func (c *compilation) put(kind string, o *outcome) {
	for _, s := range o.attached {
		s.now.attached++
	}
	for _, r := range o.routes {
		r.at.now.content.Routes = append(r.at.now.content.Routes, r.of)
	}
	for _, s := range o.streams {
		s.at.now.content.Streams = append(s.at.now.content.Streams, s.of)
	}
	for _, u := range o.policies {
		if p := c.policies.named[u.policy]; p != nil {
			c.policies.use(p, u.gateway)
		}
	}
	if c.ServeOnly {
		return
	}
	if c.out.Statuses.Routes[kind] == nil {
		c.out.Statuses.Routes[kind] = map[types.NamespacedName][]gw.RouteParentStatus{}
	}
	c.out.Statuses.Routes[kind][o.name] = o.status
}

// uses are what the routes hold of what was parsed.
func (k *Known) uses(yield func(ingress.Use) bool) {
	for _, of := range k.routes {
		for _, o := range of.all {
			for _, u := range o.uses {
				if !yield(u) {
					return
				}
			}
		}
	}
}
