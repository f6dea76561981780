package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"knarr/addons/gateway/gatewayapi"
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

// wishes are what Gateways and Ingresses name.
func wishes(api *gatewayapi.Input, mine []*networkingv1.Ingress) (all []wish) {
	for ref, since := range gatewayapi.References(api) {
		all = append(all, wish{ref.Object, ref.From, since})
	}
	for _, ing := range mine {
		for name := range references.Secrets(ing) {
			all = append(all, wish{references.Object{Resource: "secrets", Namespace: ing.Namespace, Name: name}, ing.Namespace, ing.CreationTimestamp.Time})
		}
		for name := range references.ConfigMaps(ing) {
			all = append(all, wish{references.Object{Resource: "configmaps", Namespace: ing.Namespace, Name: name}, ing.Namespace, ing.CreationTimestamp.Time})
		}
	}
	return all
}
