package loadbalancer

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/addons/loadbalancer/addresspool"
	"knarr/addons/loadbalancer/announcer"
	"knarr/internal/controller"
)

// allPools are the pools, by name, and what is wrong with each.
func (t *term) allPools() (pools []pool, problems map[string][]string) {
	problems = map[string][]string{}
	for _, o := range t.pools.List() {
		p := o.(*addresspool.AddressPool)
		of, wrong := poolOf(p)
		pools, problems[p.Name] = append(pools, of), wrong
	}
	slices.SortFunc(pools, func(a, b pool) int { return cmp.Compare(a.name, b.name) })
	return pools, problems
}

// tellPools writes the status of the pools that changed.
func (t *term) tellPools(ctx context.Context, pools []pool, problems map[string][]string, verdicts map[cache.ObjectName]verdict) error {
	given := map[netip.Addr]bool{}
	for _, v := range verdicts {
		for _, a := range v.addresses {
			given[a] = true
		}
	}
	var errs []error
	for i := range pools {
		o, _, _ := t.pools.GetByKey(pools[i].name) // a store's only error is its index's
		have, ok := o.(*addresspool.AddressPool)
		if !ok {
			continue
		}
		want := addresspool.Status{Problems: problems[pools[i].name]}
		for a := range given {
			if pools[i].contains(a) {
				want.Assigned++
			}
		}
		if have.Status.Assigned == want.Assigned && slices.Equal(have.Status.Problems, want.Problems) {
			continue
		}
		changed := have.DeepCopyObject().(*addresspool.AddressPool)
		changed.Status = want
		errs = append(errs, controller.IgnoreNotFound(t.poolClient.WriteStatus(ctx, changed)))
	}
	return errors.Join(errs...)
}

// tidy deletes the Leases of addresses that no Service has any more. It looks at the
// Leases once, and then when an address is given back.
func (t *term) tidy(ctx context.Context, pools []pool, verdicts map[cache.ObjectName]verdict) error {
	now := map[netip.Addr]bool{}
	for _, v := range verdicts {
		for _, a := range v.addresses {
			if in(pools, a) {
				now[a] = true
			}
		}
	}
	back := t.announced == nil && len(pools) > 0
	for a := range t.announced {
		back = back || !now[a]
	}
	if !back {
		if len(pools) > 0 {
			t.announced = now
		}
		return nil
	}
	leases := t.client.CoordinationV1().Leases(announcer.Namespace)
	all, err := leases.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range all.Items {
		if a, ok := announcer.AddressOf(all.Items[i].Name); !ok || !now[a] {
			errs = append(errs, controller.IgnoreNotFound(leases.Delete(ctx, all.Items[i].Name, metav1.DeleteOptions{})))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	t.announced = now
	return nil
}
