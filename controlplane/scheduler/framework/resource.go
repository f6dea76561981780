package framework

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Resources are amounts by index; those past the end are zero.
type Resources []int64

// Indexes of the resources every node has; others follow as they are met.
const (
	CPU = iota // in thousandths
	Memory
	EphemeralStorage
	Pods
	firstExtended
)

// What a container that asks for nothing is taken to use, for scoring.
const (
	defaultMilliCPU = 100
	defaultMemory   = 200 * 1024 * 1024
)

// At is the amount of resource i.
func (r Resources) At(i int) int64 {
	if i < len(r) {
		return r[i]
	}
	return 0
}

func (r *Resources) add(o Resources, sign int64) {
	for len(*r) < len(o) {
		*r = append(*r, 0)
	}
	for i, v := range o {
		(*r)[i] += sign * v
	}
}

// A resourceTable gives every resource name an index.
type resourceTable struct {
	names []corev1.ResourceName
	lacks []string // what a node is refused with that has too little of it
	index map[corev1.ResourceName]int
}

func newResourceTable() *resourceTable {
	t := &resourceTable{index: map[corev1.ResourceName]int{}}
	for _, n := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		t.of(n)
	}
	return t
}

func (t *resourceTable) of(name corev1.ResourceName) int {
	i, ok := t.index[name]
	if !ok {
		i = len(t.names)
		t.index[name] = i
		t.names = append(t.names, name)
		t.lacks = append(t.lacks, "Insufficient "+string(name))
	}
	return i
}

// counted reports whether the scheduler counts a resource besides the common ones.
func counted(name corev1.ResourceName) bool {
	s := string(name)
	return strings.Contains(s, "/") || strings.HasPrefix(s, corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(s, corev1.ResourceAttachableVolumesPrefix)
}

func (t *resourceTable) list(l corev1.ResourceList) Resources {
	r := make(Resources, firstExtended)
	for name, q := range l {
		switch name {
		case corev1.ResourceCPU:
			r[CPU] = q.MilliValue()
		case corev1.ResourceMemory:
			r[Memory] = q.Value()
		case corev1.ResourceEphemeralStorage:
			r[EphemeralStorage] = q.Value()
		case corev1.ResourcePods:
			r[Pods] = q.Value()
		default:
			if !counted(name) {
				continue
			}
			i := t.of(name)
			for len(r) <= i {
				r = append(r, 0)
			}
			r[i] = q.Value()
		}
	}
	return r
}

// requests are what the pod asks for, and what scoring takes it to use.
func (t *resourceTable) requests(pod *corev1.Pod) (asks Resources, cpu, memory int64) {
	opts := resourcehelper.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
	asks = t.list(resourcehelper.PodRequests(pod, opts))
	asks[Pods] = 1
	opts.NonMissingContainerRequests = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(defaultMilliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(defaultMemory, resource.DecimalSI),
	}
	cpu, memory = asks[CPU], asks[Memory]
	if missing(pod) {
		l := resourcehelper.PodRequests(pod, opts)
		cpu, memory = l.Cpu().MilliValue(), l.Memory().Value()
	}
	return asks, cpu, memory
}

// missing reports whether a container names no request for CPU or memory.
func missing(pod *corev1.Pod) bool {
	lacks := func(cs []corev1.Container) bool {
		for i := range cs {
			r := cs[i].Resources.Requests
			if _, ok := r[corev1.ResourceCPU]; !ok {
				return true
			}
			if _, ok := r[corev1.ResourceMemory]; !ok {
				return true
			}
		}
		return false
	}
	return lacks(pod.Spec.Containers) || lacks(pod.Spec.InitContainers)
}

// Amount is how much of resource i a list has.
func (c *Cluster) Amount(l corev1.ResourceList, i int) int64 {
	q := l[c.resources.names[i]]
	if i == CPU {
		return q.MilliValue()
	}
	return q.Value()
}
