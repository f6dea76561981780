package shutdown

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/podspec"
)

// A Group is pods that are ended together, and how long they get.
type Group struct {
	Priority int32
	Period   time.Duration
	Pods     []*corev1.Pod
}

// Groups are the groups that settings want, the least important first; none: shutdowns
// are not waited for.
func Groups(s *configuration.Settings) (groups []Group) {
	for _, p := range s.ShutdownGracePeriodByPodPriority {
		groups = append(groups, Group{Priority: p.Priority, Period: time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	if len(groups) == 0 && s.ShutdownGracePeriod.Duration > 0 {
		critical := s.ShutdownGracePeriodCriticalPods.Duration
		groups = []Group{{Priority: 0, Period: s.ShutdownGracePeriod.Duration - critical}, {Priority: podspec.SystemCritical, Period: critical}}
	}
	slices.SortStableFunc(groups, func(a, b Group) int { return cmp.Compare(a.Priority, b.Priority) })
	return groups
}

// Total is how long all groups get.
func Total(groups []Group) (d time.Duration) {
	for _, g := range groups {
		d += g.Period
	}
	return d
}

// Assign puts each pod into the last group whose priority it reaches; one that reaches
// none is in the first.
func Assign(groups []Group, pods []*corev1.Pod) []Group {
	groups = slices.Clone(groups)
	for i := range groups {
		groups[i].Pods = nil
	}
	for _, p := range pods {
		var priority int32
		if p.Spec.Priority != nil {
			priority = *p.Spec.Priority
		}
		at := 0
		for i, g := range groups {
			if g.Priority <= priority {
				at = i
			}
		}
		groups[at].Pods = append(groups[at].Pods, p)
	}
	return groups
}
