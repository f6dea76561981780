package kubelet

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"knarr/node/kubelet/deviceplugin"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/preemption"
)

// unsupported says what a node cannot do for a pod, whoever else runs there.
func unsupported(pod *corev1.Pod, node *corev1.Node) *rejection {
	if os, ok := pod.Labels[corev1.LabelOSStable]; ok && os != runtime.GOOS {
		return &rejection{"PodOSSelectorNodeLabelDoesNotMatch", fmt.Sprintf("Failed to admit pod as the `%s` label doesn't match node label", corev1.LabelOSStable)}
	}
	if os := pod.Spec.OS; os != nil && string(os.Name) != runtime.GOOS {
		return &rejection{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	if sc := pod.Spec.SecurityContext; sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		if f := node.Status.Features; f == nil || f.SupplementalGroupsPolicy == nil || !*f.SupplementalGroupsPolicy {
			return &rejection{"SupplementalGroupsPolicyNotSupported", fmt.Sprintf("SupplementalGroupsPolicy=%s is not supported in this node", corev1.SupplementalGroupsPolicyStrict)}
		}
	}
	return nil
}

// misfits are the predicates besides that of resources which fail on a node, in
// upstream's order.
func misfits(pod *corev1.Pod, others []*corev1.Pod, node *corev1.Node) (out []*rejection) {
	fails := func(name, why string) {
		out = append(out, &rejection{name, fmt.Sprintf("Predicate %s failed: %s", name, why)})
	}
	if !fitsLabels(pod, node) {
		fails("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		fails("NodeName", "node(s) didn't match the requested node name")
	}
	if portTaken(pod, others) {
		fails("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	}
	if isStatic(pod) {
		return out
	}
	if _, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute
	}, true); untolerated {
		fails("TaintToleration", "node(s) had taints that the pod didn't tolerate")
	}
	return out
}

// fitsLabels says whether a node is one of those that a pod is to be on.
func fitsLabels(pod *corev1.Pod, node *corev1.Node) bool {
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return ok && err == nil
}

func admitResources(pod *corev1.Pod, others []*corev1.Pod, node *corev1.Node) *rejection {
	if all := short(pod, others, node); len(all) > 0 {
		return all[0].rejection()
	}
	return nil
}

// A shortage is a resource that the node has too little of for a pod.
type shortage struct {
	name                      corev1.ResourceName
	requested, used, capacity int64
}

func (s shortage) rejection() *rejection {
	return &rejection{"OutOf" + string(s.name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", s.name, s.requested, s.used, s.capacity)}
}

// short are the resources that a node has too little of.
func short(pod *corev1.Pod, others []*corev1.Pod, node *corev1.Node) (all []shortage) {
	alloc := node.Status.Allocatable
	if len(alloc) == 0 {
		return nil
	}
	if have := alloc.Pods().Value(); int64(len(others))+1 > have {
		all = append(all, shortage{corev1.ResourcePods, 1, int64(len(others)), have})
	}
	used := map[corev1.ResourceName]int64{}
	want := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	names := slices.SortedFunc(maps.Keys(want), byRank)
	for _, o := range others {
		for _, name := range names {
			used[name] += preemption.Request(o, name)
		}
	}
	for _, name := range names {
		have, known := alloc[name]
		req := preemption.Request(pod, name)
		if req == 0 || !known && (name == corev1.ResourceEphemeralStorage || deviceplugin.Extended(string(name))) {
			continue // what is not counted here, or is somebody else's, who has counted it
		}
		all = append(all, shortage{name, req, used[name], have.Value()})
		last := &all[len(all)-1]
		if name == corev1.ResourceCPU {
			last.capacity = have.MilliValue()
		}
		if last.requested+last.used <= last.capacity {
			all = all[:len(all)-1]
		}
	}
	return all
}

// byRank has the resources first that upstream looks at first: of several that are short the
// first one names the reason. The rest are by name, where upstream's order is any.
func byRank(a, b corev1.ResourceName) int {
	first := []corev1.ResourceName{corev1.ResourceEphemeralStorage, corev1.ResourceMemory, corev1.ResourceCPU}
	return cmp.Or(cmp.Compare(slices.Index(first, b), slices.Index(first, a)), cmp.Compare(a, b))
}

func portTaken(pod *corev1.Pod, others []*corev1.Pod) bool {
	type port struct {
		proto corev1.Protocol
		n     int32
	}
	each := func(p *corev1.Pod, f func(port, string)) {
		lists := [][]corev1.Container{p.Spec.Containers}
		for i := range p.Spec.InitContainers {
			if podspec.IsSidecar(&p.Spec.InitContainers[i]) {
				lists = append(lists, p.Spec.InitContainers[i:i+1])
			}
		}
		for _, l := range lists {
			for i := range l {
				for _, c := range l[i].Ports {
					if c.HostPort > 0 {
						proto := c.Protocol
						if proto == "" {
							proto = corev1.ProtocolTCP
						}
						ip := c.HostIP
						if ip == "" {
							ip = "0.0.0.0"
						}
						f(port{proto, c.HostPort}, ip)
					}
				}
			}
		}
	}
	taken := map[port][]string{}
	for _, o := range others {
		each(o, func(p port, ip string) { taken[p] = append(taken[p], ip) })
	}
	clash := false
	each(pod, func(p port, ip string) {
		for _, t := range taken[p] {
			clash = clash || t == ip || t == "0.0.0.0" || ip == "0.0.0.0"
		}
	})
	return clash
}
