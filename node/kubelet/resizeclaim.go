package kubelet

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podspec"
)

// A resizeClaim is what a running pod asks for that its node may have no room for yet.
type resizeClaim struct {
	pod   *corev1.Pod
	since time.Time // when it was asked for
}

// compare is upstream's order of those that wait: priority, guaranteed pods, time.
func (c *resizeClaim) compare(other *resizeClaim) int {
	guaranteed := func(c *resizeClaim) int {
		if podspec.QOS(c.pod) == corev1.PodQOSGuaranteed {
			return 1
		}
		return 0
	}
	priority := func(c *resizeClaim) int32 {
		if p := c.pod.Spec.Priority; p != nil {
			return *p
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(priority(other), priority(c)),
		cmp.Compare(guaranteed(other), guaranteed(c)),
		c.since.Compare(other.since),
	)
}

// behind are the other pods of the node, those with what they ask for that go before
// this one and for which there is room: all are told at once that there may be, and
// whoever looks first must not take what is another's. This pod still has what it is
// known with. Pure.
func (c *resizeClaim) behind(is *corev1.Pod, others []*corev1.Pod, waiting []*resizeClaim, node *corev1.Node) []*corev1.Pod {
	waiting = slices.DeleteFunc(slices.Clone(waiting), func(o *resizeClaim) bool { return o.compare(c) >= 0 })
	slices.SortFunc(waiting, (*resizeClaim).compare)
	others = slices.Clone(others)
	for _, o := range waiting {
		i := slices.IndexFunc(others, func(p *corev1.Pod) bool { return p.UID == o.pod.UID })
		if i < 0 {
			continue
		}
		rest := slices.Concat(others[:i], others[i+1:], []*corev1.Pod{is})
		if admitResources(o.pod, rest, node) == nil {
			others[i] = o.pod
		}
	}
	return others
}
