package daemonset

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/controllermanager/pods"
)

// plan gives the nodes to create a pod for and the pods to delete.
func (v *view) plan() (create []string, remove []*corev1.Pod) {
	surge, _ := v.limits()
	for _, p := range v.places {
		alive := present(p.live)
		switch {
		case !p.stays:
			remove = append(remove, alive...)
			remove = append(remove, p.ended...)
		case p.fits && len(p.live) == 0 && len(p.ended) == 0:
			create = append(create, p.node.Name)
		case len(alive) > 1:
			remove = append(remove, v.surplus(alive, surge)...)
		}
	}
	if v.ds.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		more, old := v.roll()
		create, remove = append(create, more...), append(remove, old...)
	}
	return create, remove
}

// present are the pods that are not being deleted.
func present(list []*corev1.Pod) (out []*corev1.Pod) {
	for _, p := range list {
		if p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
}

// surplus are the pods of one node to delete: all but the oldest, or with
// surge all but the oldest of each revision.
func (v *view) surplus(alive []*corev1.Pod, surge int) (out []*corev1.Pod) {
	if surge == 0 {
		return alive[1:]
	}
	seen := map[bool]bool{}
	for _, p := range alive {
		if seen[v.updated(p)] {
			out = append(out, p)
		}
		seen[v.updated(p)] = true
	}
	return out
}

// roll takes one step of a rolling update.
func (v *view) roll() (create []string, remove []*corev1.Pod) {
	surge, unavailable := v.limits()
	var failing, fine []*place
	down, extra := 0, 0
	for _, p := range v.places {
		if !p.fits {
			continue
		}
		old, fresh := p.old, p.fresh
		switch {
		case old == nil:
			if !v.available(fresh) {
				down++
			}
		case fresh == nil && old.DeletionTimestamp != nil:
			down++
			if surge > 0 {
				create = append(create, p.node.Name)
			}
		case fresh == nil && !v.available(old):
			down++
			failing = append(failing, p)
		case fresh == nil:
			fine = append(fine, p)
		case surge > 0 && v.available(fresh):
			if old.DeletionTimestamp == nil {
				remove = append(remove, old)
			}
		case surge > 0:
			extra++
		default: // two on one node: the surplus goes first
			down++
		}
	}
	if surge > 0 {
		for _, p := range failing { // nothing is lost by more
			create = append(create, p.node.Name)
		}
		for _, p := range fine[:max(0, min(surge-extra, len(fine)))] {
			create = append(create, p.node.Name)
		}
		return create, remove
	}
	for _, p := range failing {
		remove = append(remove, p.old)
	}
	for _, p := range fine[:max(0, min(unavailable-down, len(fine)))] {
		remove = append(remove, p.old)
	}
	return create, remove
}

// status is what the places make of the set.
func (v *view) status() appsv1.DaemonSetStatus {
	s := appsv1.DaemonSetStatus{
		ObservedGeneration: v.ds.Generation, CollisionCount: v.ds.Status.CollisionCount, Conditions: v.ds.Status.Conditions,
	}
	for _, p := range v.places {
		there := append(present(p.live), p.ended...)
		if !p.fits {
			if len(there) > 0 {
				s.NumberMisscheduled++
			}
			continue
		}
		s.DesiredNumberScheduled++
		if len(there) == 0 {
			continue
		}
		s.CurrentNumberScheduled++
		pod := there[0]
		if v.updated(pod) || p.fresh != nil && p.fresh.DeletionTimestamp == nil {
			s.UpdatedNumberScheduled++
			if p.fresh != nil && p.fresh.DeletionTimestamp == nil && pods.Ready(p.fresh) {
				pod = p.fresh
			}
		}
		if pods.Ready(pod) {
			s.NumberReady++
			if pods.Available(pod, v.ds.Spec.MinReadySeconds, v.now) {
				s.NumberAvailable++
			}
		}
	}
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
	return s
}
