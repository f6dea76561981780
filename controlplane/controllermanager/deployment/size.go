package deployment

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The sets of a deployment: the one with the present template, if there is
// one, and all others from the oldest on.
type sets struct {
	current *appsv1.ReplicaSet
	old     []*appsv1.ReplicaSet
}

func split(d *appsv1.Deployment, all []*appsv1.ReplicaSet) sets {
	var s sets
	all = slices.Clone(all)
	slices.SortFunc(all, byAge)
	for _, rs := range all {
		if s.current == nil && sameTemplate(&rs.Spec.Template, &d.Spec.Template) {
			s.current = rs
		} else {
			s.old = append(s.old, rs)
		}
	}
	return s
}

func byAge(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func (s sets) all() []*appsv1.ReplicaSet {
	all := slices.Clone(s.old)
	if s.current != nil {
		all = append(all, s.current)
	}
	return all
}

// replace stores what the server made of a set.
func (s *sets) replace(rs *appsv1.ReplicaSet) {
	if s.current != nil && s.current.UID == rs.UID {
		s.current = rs
	}
	for i := range s.old {
		if s.old[i].UID == rs.UID {
			s.old[i] = rs
		}
	}
}

func active(list []*appsv1.ReplicaSet) (out []*appsv1.ReplicaSet) {
	for _, rs := range list {
		if *rs.Spec.Replicas > 0 {
			out = append(out, rs)
		}
	}
	return out
}

// sum adds up one number of each set.
func sum(list []*appsv1.ReplicaSet, of func(*appsv1.ReplicaSet) int32) (n int32) {
	for _, rs := range list {
		n += of(rs)
	}
	return n
}

func wanted(rs *appsv1.ReplicaSet) int32    { return *rs.Spec.Replicas }
func available(rs *appsv1.ReplicaSet) int32 { return rs.Status.AvailableReplicas }
func actual(rs *appsv1.ReplicaSet) int32    { return rs.Status.Replicas }
func ready(rs *appsv1.ReplicaSet) int32     { return rs.Status.ReadyReplicas }

func rolling(d *appsv1.Deployment) bool {
	return d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType
}

// resolveFenceposts is how many pods more and how many fewer than wanted a rolling update
// may have. Both zero would be a rollout that never moves.
func resolveFenceposts(d *appsv1.Deployment) (surge, unavailable int32) {
	if !rolling(d) || d.Spec.Strategy.RollingUpdate == nil {
		return 0, 0
	}
	u := d.Spec.Strategy.RollingUpdate
	scaled := func(v *intstr.IntOrString, up bool) int32 {
		n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(v, intstr.FromInt32(0)), int(*d.Spec.Replicas), up)
		if err != nil {
			return 0 // validation lets none through
		}
		return int32(n)
	}
	surge, unavailable = scaled(u.MaxSurge, true), scaled(u.MaxUnavailable, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

func maxSurge(d *appsv1.Deployment) int32 {
	surge, _ := resolveFenceposts(d)
	return surge
}

func maxUnavailable(d *appsv1.Deployment) int32 {
	if *d.Spec.Replicas == 0 {
		return 0
	}
	_, unavailable := resolveFenceposts(d)
	return min(unavailable, *d.Spec.Replicas)
}

// currentSize is the size the current set may have now beside the others.
func currentSize(d *appsv1.Deployment, have int32, total int32) int32 {
	if !rolling(d) {
		return *d.Spec.Replicas
	}
	most := *d.Spec.Replicas + maxSurge(d)
	if total >= most {
		return have
	}
	return have + min(most-total, *d.Spec.Replicas-have)
}

// A resize is a set and the size it should get.
type resize struct {
	set  *appsv1.ReplicaSet
	size int32
}

// planOld says how a rolling update shrinks the old sets: pods that do not
// serve first, then as many as the new ones make up for.
func planOld(d *appsv1.Deployment, s sets) (unhealthy, rest []resize) {
	old := active(s.old)
	if len(old) == 0 {
		return nil, nil
	}
	least := *d.Spec.Replicas - maxUnavailable(d)
	room := sum(s.all(), wanted) - least - (wanted(s.current) - available(s.current))
	if room <= 0 {
		return nil, nil
	}
	size := map[string]int32{}
	for _, rs := range old {
		size[rs.Name] = wanted(rs)
		if unhealthyCount := min(room, wanted(rs)-available(rs)); unhealthyCount > 0 {
			room -= unhealthyCount
			size[rs.Name] -= unhealthyCount
			unhealthy = append(unhealthy, resize{rs, size[rs.Name]})
		}
	}
	spare := sum(old, available) + available(s.current) - least
	for _, rs := range old {
		if n := min(size[rs.Name], spare); n > 0 {
			spare -= n
			rest = append(rest, resize{rs, size[rs.Name] - n})
		}
	}
	return unhealthy, rest
}

// planScale says how the sets of a deployment that was resized, or is paused,
// share the new size: in proportion, while several of them are active.
func planScale(d *appsv1.Deployment, s sets) (out []resize, annotateAll bool) {
	if one := activeOrLatest(s); one != nil {
		if wanted(one) == *d.Spec.Replicas {
			return nil, false
		}
		return []resize{{one, *d.Spec.Replicas}}, false
	}
	if saturated(d, s.current) {
		for _, rs := range active(s.old) {
			out = append(out, resize{rs, 0})
		}
		return out, false
	}
	if !rolling(d) {
		return nil, false
	}
	all := active(s.all())
	var allowed int32
	if *d.Spec.Replicas > 0 {
		allowed = *d.Spec.Replicas + maxSurge(d)
	}
	add := allowed - sum(all, wanted)
	slices.SortFunc(all, func(a, b *appsv1.ReplicaSet) int {
		bySize := cmp.Compare(wanted(b), wanted(a))
		if add > 0 { // the newer first
			return cmp.Or(bySize, byAge(b, a))
		}
		return cmp.Or(bySize, byAge(a, b))
	})
	var added int32
	for _, rs := range all {
		n := share(d, rs, add, added)
		out = append(out, resize{rs, wanted(rs) + n})
		added += n
	}
	if len(out) > 0 && add != 0 { // the largest takes what rounding left
		out[0].size = max(0, out[0].size+add-added)
	}
	return out, true
}

// share is rs's part of add, of which added is given out already.
func share(d *appsv1.Deployment, rs *appsv1.ReplicaSet, add, added int32) int32 {
	if wanted(rs) == 0 || add == 0 || add == added {
		return 0
	}
	part := -wanted(rs)
	if *d.Spec.Replicas != 0 {
		before, ok := annotated(rs, maxReplicasAnnotation)
		if !ok || before == 0 {
			before = d.Status.Replicas
		}
		if before == 0 {
			return 0
		}
		most := *d.Spec.Replicas + maxSurge(d)
		part = int32(math.Round(float64(wanted(rs))*float64(most)/float64(before))) - wanted(rs)
	}
	if add > 0 {
		return min(part, add-added)
	}
	return max(part, add-added)
}

func activeOrLatest(s sets) *appsv1.ReplicaSet {
	switch on := active(s.all()); {
	case len(on) == 1:
		return on[0]
	case len(on) > 1:
		return nil
	case s.current != nil:
		return s.current
	case len(s.old) > 0:
		return s.old[len(s.old)-1]
	}
	return nil
}

// saturated says that rs has all the pods wanted and they serve.
func saturated(d *appsv1.Deployment, rs *appsv1.ReplicaSet) bool {
	if rs == nil {
		return false
	}
	desired, ok := annotated(rs, desiredReplicasAnnotation)
	return ok && wanted(rs) == *d.Spec.Replicas && desired == *d.Spec.Replicas && available(rs) == *d.Spec.Replicas
}

func annotated(rs *appsv1.ReplicaSet, key string) (int32, bool) {
	n, err := strconv.ParseUint(rs.Annotations[key], 10, 31)
	return int32(n), err == nil
}
