package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/addons/gateway/ingress"
	"knarr/addons/gateway/route"
)

// judgeOrders leaves each host to the namespace of the oldest of the objects that ask for a
// certificate for it: all share one account, so that what an authority has validated for one
// would count for another. Listeners answer the challenges of what is left; of are the
// Gateways that they are of, none for those of Ingresses. Pure.
func judgeOrders(orders []ingress.Order, listeners []route.Listener, of map[string]*gw.Gateway) []ingress.Order {
	orders = slices.Clone(orders)
	slices.SortStableFunc(orders, func(a, b ingress.Order) int {
		at, bt := a.Owner.GetCreationTimestamp(), b.Owner.GetCreationTimestamp()
		return cmp.Or(at.Compare(bt.Time), strings.Compare(a.Secret.String(), b.Secret.String()))
	})
	type claim struct {
		gateway *gw.Gateway // nil: an Ingress
		host    string
	}
	namespaces, left := map[string]string{}, map[claim]bool{}
	for i := range orders {
		o := &orders[i]
		gateway, _ := o.Owner.(*gw.Gateway)
		var hosts, faults []string
		for _, host := range o.Hosts {
			if namespace, there := namespaces[host]; there && namespace != o.Secret.Namespace {
				faults = append(faults, fmt.Sprintf("no certificate is ordered for host %s: an older object of another namespace asks for one", host))
				continue
			}
			namespaces[host], left[claim{gateway, host}] = o.Secret.Namespace, true
			hosts = append(hosts, host)
		}
		o.Hosts, o.Faults = hosts, slices.Concat(o.Faults, faults)
	}
	for i := range listeners {
		l := &listeners[i]
		lost := func(host string) bool { return !left[claim{of[l.Name], host}] }
		if slices.ContainsFunc(l.ChallengeHosts, lost) {
			l.ChallengeHosts = slices.DeleteFunc(slices.Clone(l.ChallengeHosts), lost)
		}
	}
	return orders
}
