package framework

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Resources are amounts by index; those past the end are zero.
type Resources []int64

// An Amount is how much of a resource a pod asks for, beside those every node has.
type Amount struct {
	Name corev1.ResourceName
	Much int64
}

// Indexes of the resources every node has; others follow as nodes have them.
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

// A resourceTable gives every resource name that a node has, or had, an index. Names
// that only pods have get none: there is no end of them.
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

// common reads the amounts that every node has, and calls each for the others
// that are counted.
func common(l corev1.ResourceList, each func(corev1.ResourceName, int64)) Resources {
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
			if counted(name) {
				each(name, q.Value())
			}
		}
	}
	return r
}

func (r *Resources) set(i int, v int64) {
	for len(*r) <= i {
		*r = append(*r, 0)
	}
	(*r)[i] = v
}

// allocatable is what a node has. Names that are new get an index.
func (c *Cluster) allocatable(l corev1.ResourceList) Resources {
	var more []Amount
	r := common(l, func(name corev1.ResourceName, v int64) { more = append(more, Amount{name, v}) })
	known := len(c.resources.names)
	for _, a := range more {
		r.set(c.resources.of(a.Name), a.Much)
	}
	if len(c.resources.names) > known {
		for _, s := range c.shapes {
			c.resources.find(s)
		}
	}
	return r
}

// find moves what no node had to what some node has.
func (t *resourceTable) find(s *Shape) {
	s.Nowhere = slices.DeleteFunc(s.Nowhere, func(a Amount) bool {
		i, ok := t.index[a.Name]
		if ok {
			s.Asks.set(i, a.Much)
			for _, p := range s.placed {
				p.Node.Used.set(i, p.Node.Used.At(i)+a.Much)
			}
		}
		return ok
	})
}

// requests are what the pod asks for, of what every node has and of other resources by
// name, and what scoring takes it to use.
func requests(pod *corev1.Pod) (asks Resources, more []Amount, cpu, memory int64) {
	opts := resourcehelper.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
	asks = common(resourcehelper.PodRequests(pod, opts), func(name corev1.ResourceName, v int64) {
		if v > 0 {
			more = append(more, Amount{name, v})
		}
	})
	slices.SortFunc(more, func(a, b Amount) int { return cmp.Compare(a.Name, b.Name) })
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
	return asks, more, cpu, memory
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
