package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"knarr/addons/gateway/gatewayapi"
	"knarr/addons/gateway/route"
	"knarr/internal/references"
)

// A wish is a Secret or ConfigMap that an object names.
type wish struct {
	references.Object
	// by is the namespace of the object that names it, since is when that was made.
	by    string
	since time.Time
}

// shareNamed are the objects that are read: at most so many, and at most so many for the
// namespace that asks for them, those of the oldest objects first. left are the others,
// with the reason. Pure.
func shareNamed(all []wish, most, each int) (given []references.Object, left map[references.Object]string) {
	slices.SortStableFunc(all, func(a, b wish) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.by, b.by), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Name, b.Name))
	})
	taken, of := make(map[references.Object]bool, len(all)), map[string]int{}
	left = map[references.Object]string{}
	for _, a := range all {
		switch {
		case taken[a.Object]:
		case of[a.by] >= each:
			left[a.Object] = fmt.Sprintf("older Ingresses and Gateways of namespace %s name %d Secrets and ConfigMaps, which is all that are read for one", a.by, each)
		case len(given) >= most:
			left[a.Object] = fmt.Sprintf("older Ingresses and Gateways name %d Secrets and ConfigMaps, which is all that are read", most)
		default:
			taken[a.Object] = true
			of[a.by]++
			given = append(given, a.Object)
			delete(left, a.Object) // another namespace has asked for it in vain
		}
	}
	return given, left
}

// A wisher knows what Gateways and Ingresses name, and what of that is read.
type wisher struct {
	mine  []*networkingv1.Ingress
	given []references.Object
	left  map[references.Object]string
	of    map[*networkingv1.Ingress][]wish // those that name something
	api   []wish
	known bool
}

// look notes what is named now, and says whether that is other than before.
func (w *wisher) look(api *gatewayapi.Input, mine []*networkingv1.Ingress) (changed bool) {
	if w.of == nil {
		w.of = map[*networkingv1.Ingress][]wish{}
	}
	var before, now []wish
	from, to, nowTo := route.Changed(w.mine, mine)
	for _, ing := range w.mine[from:to] {
		before = append(before, w.of[ing]...)
		delete(w.of, ing)
	}
	for _, ing := range mine[from:nowTo] {
		if all := wishesOf(ing); len(all) > 0 {
			w.of[ing], now = all, append(now, all...)
		}
	}
	w.mine = mine
	var named []wish
	for ref, since := range gatewayapi.References(api) {
		named = append(named, wish{ref.Object, ref.From, since})
	}
	if w.known && slices.Equal(before, now) && slices.Equal(w.api, named) {
		return false
	}
	w.known, w.api = true, named
	all := slices.Clone(named)
	for _, of := range w.of {
		all = append(all, of...)
	}
	w.given, w.left = shareNamed(all, maxNamed, maxNamedEach)
	return true
}

// wishesOf are what an Ingress names.
func wishesOf(ing *networkingv1.Ingress) (all []wish) {
	for name := range references.Secrets(ing) {
		all = append(all, wish{references.Object{Resource: "secrets", Namespace: ing.Namespace, Name: name}, ing.Namespace, ing.CreationTimestamp.Time})
	}
	for name := range references.ConfigMaps(ing) {
		all = append(all, wish{references.Object{Resource: "configmaps", Namespace: ing.Namespace, Name: name}, ing.Namespace, ing.CreationTimestamp.Time})
	}
	return all
}
