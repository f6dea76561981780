package pods

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ToDelete are the n pods whose loss hurts least. related are all active pods
// of the same application: a node that holds many loses one first.
func ToDelete(all, related []*corev1.Pod, n int, now time.Time) []*corev1.Pod {
	if n >= len(all) {
		return all
	}
	onNode := map[string]int{}
	for _, p := range related {
		if Active(p) {
			onNode[p.Spec.NodeName]++
		}
	}
	ranked := make([]ranked, len(all))
	for i, p := range all {
		ranked[i] = rank(p, onNode[p.Spec.NodeName], now)
	}
	slices.SortFunc(ranked, compare)
	out := make([]*corev1.Pod, n)
	for i := range out {
		out[i] = ranked[i].pod
	}
	return out
}

// A ranked is a pod with what its rank depends on, computed once.
type ranked struct {
	pod        *corev1.Pod
	assigned   int
	phase      int
	ready      int
	cost       int
	podsOnNode int
	readyAge   int // log2 of the seconds it has been ready; unknown is 0
	restarts   int32
	sidecars   int32
	age        int // log2 of the seconds it has been there; unknown is 0
}

func rank(p *corev1.Pod, podsOnNode int, now time.Time) ranked {
	v := ranked{pod: p, podsOnNode: podsOnNode, phase: 1}
	if p.Spec.NodeName != "" {
		v.assigned = 1
	}
	switch p.Status.Phase {
	case corev1.PodPending:
		v.phase = 0
	case corev1.PodRunning:
		v.phase = 2
	}
	if c := Condition(p, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		v.ready, v.readyAge = 1, magnitude(c.LastTransitionTime.Time, now)
	}
	if cost, err := strconv.ParseInt(p.Annotations[corev1.PodDeletionCost], 10, 32); err == nil {
		v.cost = int(cost)
	}
	for _, c := range p.Status.ContainerStatuses {
		v.restarts = max(v.restarts, c.RestartCount)
	}
	for _, c := range p.Status.InitContainerStatuses {
		v.sidecars = max(v.sidecars, c.RestartCount)
	}
	v.age = magnitude(p.CreationTimestamp.Time, now)
	return v
}

// magnitude makes ages alike that differ little, so that among them chance
// decides and pods of one rollout do not all go.
func magnitude(since, now time.Time) int {
	if since.IsZero() {
		return 0
	}
	s := int64(now.Sub(since))
	if s <= 0 {
		return 1
	}
	return 2 + int(math.Log2(float64(s)))
}

func compare(a, b ranked) int {
	return cmp.Or(
		cmp.Compare(a.assigned, b.assigned),
		cmp.Compare(a.phase, b.phase),
		cmp.Compare(a.ready, b.ready),
		cmp.Compare(a.cost, b.cost),
		cmp.Compare(b.podsOnNode, a.podsOnNode),
		cmp.Compare(a.readyAge, b.readyAge),
		cmp.Compare(b.restarts, a.restarts),
		cmp.Compare(b.sidecars, a.sidecars),
		cmp.Compare(a.age, b.age),
		cmp.Compare(a.pod.UID, b.pod.UID),
	)
}
