package plugin

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	quotaconfig "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/v1"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/quota"
)

// resourceQuota charges what a write uses to its namespace's quotas, and
// refuses what they do not hold. It writes the quotas' status before the object
// is stored; what is charged for a write that fails later, the controller gives
// back.
type resourceQuota struct {
	cache *watchcache.Cache
	// limited is what nobody may use without a quota.
	limited []quotaconfig.LimitedResource
	// locks let the writers of a namespace charge one after the other, so that
	// they do not spoil each other's writes.
	locks [64]sync.Mutex
	seed  maphash.Seed
}

func newResourceQuota(cache *watchcache.Cache, limited []quotaconfig.LimitedResource) *resourceQuota {
	return &resourceQuota{cache: cache, limited: limited, seed: maphash.MakeSeed()}
}

func (*resourceQuota) Name() string { return "ResourceQuota" }

// chargeTries is how often a lost race for a quota is run again.
const chargeTries = 8

func (p *resourceQuota) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Namespace == "" || is(a, "namespaces", "") {
		return nil
	}
	quotas := p.cache.Resource(corev1.SchemeGroupVersion.WithResource("resourcequotas"))
	if quotas == nil || quotas.Empty() && len(p.limited) == 0 {
		return nil
	}
	measure, ok := quota.For(a.Resource.GroupResource())
	if !ok || !chargeable(a) {
		return nil
	}
	some := len(p.limited) > 0
	watchcache.Each(quotas, a.Namespace, func(*corev1.ResourceQuota) bool { some = true; return false })
	if !some {
		return nil
	}
	lock := &p.locks[maphash.String(p.seed, a.Namespace)%uint64(len(p.locks))]
	lock.Lock()
	defer lock.Unlock()
	var names []string
	watchcache.Each(quotas, a.Namespace, func(q *corev1.ResourceQuota) bool {
		names = append(names, q.Name)
		return true
	})
	return p.charge(ctx, a, measure, quotas, names)
}

// charge checks all the quotas, then writes those that change. Who loses a
// race for one of them checks that one again.
func (p *resourceQuota) charge(ctx context.Context, a *admission.Attributes, measure quota.Measure, quotas *watchcache.Resource, names []string) error {
	read := func(key string) (*watchcache.Record, error) {
		if rec := quotas.Peek(key); rec != nil {
			return rec, nil
		}
		return nil, watchcache.ErrNotFound
	}
	for try := 1; ; try++ {
		var records []*watchcache.Record
		var now []*corev1.ResourceQuota
		for _, name := range names {
			rec, err := read(a.Namespace + "/" + name)
			if errors.Is(err, watchcache.ErrNotFound) { // deleted: it limits nothing
				continue
			}
			if err != nil {
				return apierrors.NewInternalError(err)
			}
			obj, err := rec.Object()
			if err != nil {
				return apierrors.NewInternalError(err)
			}
			records, now = append(records, rec), append(now, obj.(*corev1.ResourceQuota))
		}
		next, err := charged(now, a, measure, p.limited, time.Now())
		if err != nil || a.DryRun {
			return err
		}
		names = names[:0]
		for i, q := range next {
			if q == nil {
				continue
			}
			_, err := quotas.Update(ctx, records[i].Key, records[i], q)
			switch {
			case errors.Is(err, watchcache.ErrConflict):
				names = append(names, q.Name)
			case err != nil && !errors.Is(err, watchcache.ErrNotFound):
				return apierrors.NewInternalError(err)
			}
		}
		if len(names) == 0 {
			return nil
		}
		if try == chargeTries || ctx.Err() != nil {
			return apierrors.NewConflict(corev1.Resource("resourcequotas"), names[0],
				errors.New("the object has been modified; please apply your changes to the latest version and try again"))
		}
		read = func(key string) (*watchcache.Record, error) { return quotas.Fetch(ctx, key) }
	}
}

// chargeable reports whether a write can use more than before.
func chargeable(a *admission.Attributes) bool {
	create, update := a.Operation == admission.Create, a.Operation == admission.Update
	if a.Resource.Group == "" {
		switch a.Resource.Resource {
		case "pods":
			pod, ok := a.Object.(*corev1.Pod)
			if !ok || !update {
				return ok && create && a.Subresource == ""
			}
			old, ok := a.Old.(*corev1.Pod)
			return ok && (a.Subresource == "resize" || a.Subresource == "" && quota.PodTerminating(old) != quota.PodTerminating(pod))
		case "services":
			_, ok := a.Object.(*corev1.Service)
			return ok && a.Subresource == "" && (create || update)
		case "persistentvolumeclaims":
			claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
			old, _ := a.Old.(*corev1.PersistentVolumeClaim)
			return ok && (a.Subresource == "" && (create || update) ||
				a.Subresource == "status" && old != nil && quota.ClaimChanged(claim, old))
		}
	}
	return create && a.Subresource == ""
}

// charged are the quotas as they are once a has been stored, nil for each that
// stays as it is.
func charged(quotas []*corev1.ResourceQuota, a *admission.Attributes, measure quota.Measure, limited []quotaconfig.LimitedResource, now time.Time) ([]*corev1.ResourceQuota, error) {
	var concerned []int
	var covered cover
	for i, q := range quotas {
		if len(limited) > 0 {
			if err := covered.scopesOf(q, measure, a.Object); err != nil {
				return nil, err
			}
		}
		match, err := measure.Matches(&q.Spec, a.Object)
		if err != nil {
			return nil, err
		}
		if !match {
			continue
		}
		names := measure.Of(q.Status.Hard)
		if measure.Demand != nil {
			if err := measure.Demand(names, a.Object); err != nil {
				return nil, forbidden(a, fmt.Errorf("failed quota: %s: %w", q.Name, err))
			}
		}
		if slices.ContainsFunc(names, func(n corev1.ResourceName) bool { _, known := q.Status.Used[n]; return !known }) {
			return nil, forbidden(a, fmt.Errorf("status unknown for quota: %s, resources: %s", q.Name, join(names)))
		}
		if len(names) > 0 {
			concerned = append(concerned, i)
			covered.names = append(covered.names, names...)
		}
	}
	if len(concerned) == 0 && len(limited) == 0 {
		return nil, nil
	}
	use := measure.Use(a.Object, now)
	if below := quota.Negative(use); len(below) > 0 {
		return nil, forbidden(a, fmt.Errorf("quota usage is negative for resource(s): %s", join(below)))
	}
	more := use
	stored, _ := a.Old.(metav1.Object)
	update := a.Operation == admission.Update && stored != nil && stored.GetResourceVersion() != ""
	if update {
		more = quota.More(use, measure.Use(a.Old, now))
	}
	if len(limited) > 0 && len(quota.More(more, nil)) > 0 {
		if err := covered.check(a, measure, limited, use); err != nil {
			return nil, err
		}
	}
	next := make([]*corev1.ResourceQuota, len(quotas))
	for _, i := range concerned {
		q, delta := quotas[i], use
		if update {
			had, err := measure.Matches(&q.Spec, a.Old)
			if err != nil {
				return nil, err
			}
			if had {
				delta = more
			}
		}
		delta = quota.More(quota.Only(delta, measure.Of(q.Status.Hard)), nil)
		if len(delta) == 0 {
			continue
		}
		total := quota.Add(q.Status.Used, delta)
		if a.Subresource != "status" { // what is so already cannot be refused
			names := measure.Of(delta)
			if over := quota.Over(quota.Only(total, names), q.Status.Hard); len(over) > 0 {
				return nil, forbidden(a, fmt.Errorf("exceeded quota: %s, requested: %s, used: %s, limited: %s", q.Name,
					quota.Text(quota.Only(delta, over)), quota.Text(quota.Only(q.Status.Used, over)), quota.Text(quota.Only(q.Status.Hard, over))))
			}
		}
		next[i] = q.DeepCopy()
		next[i].Status.Used = total
	}
	return next, nil
}

func join(names []corev1.ResourceName) string {
	parts := make([]string, len(names))
	for i, n := range names {
		parts[i] = string(n)
	}
	return strings.Join(parts, ",")
}
