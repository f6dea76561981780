package memorymanager

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// Reserved is what is kept from pods, by NUMA node and resource in bytes.
type Reserved map[int]map[corev1.ResourceName]uint64

// ReservedBy is what settings keep of each NUMA node. Their sum has to be what is kept of
// the node as a whole.
func ReservedBy(settings []kubeletconfig.MemoryReservation, whole corev1.ResourceList, nodes []Node) (Reserved, error) {
	out, sums := Reserved{}, map[corev1.ResourceName]resource.Quantity{}
	for _, r := range settings {
		id := int(r.NumaNode)
		if !slices.ContainsFunc(nodes, func(n Node) bool { return n.ID == id }) {
			return nil, fmt.Errorf("the reserved memory configuration references a NUMA node %d that does not exist on this machine", id)
		}
		if out[id] == nil {
			out[id] = map[corev1.ResourceName]uint64{}
		}
		for name, q := range r.Limits {
			n, ok := q.AsInt64()
			if !ok || n < 0 {
				return nil, fmt.Errorf("could not covert a variable of type Quantity to int64")
			}
			out[id][name] = uint64(n)
			sum := sums[name]
			sum.Add(q)
			sums[name] = sum
		}
	}
	for name := range whole {
		if _, ok := sums[name]; !ok && (name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)) {
			sums[name] = resource.Quantity{}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		sum, all := sums[name], whole[name]
		if sum.Cmp(all) != 0 {
			return nil, fmt.Errorf("the total amount %q of type %q is not equal to the value %q determined by Node Allocatable feature", sum.String(), name, all.String())
		}
	}
	return out, nil
}
