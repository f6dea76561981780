package criconfig

import (
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hugepages are the limits of a container: of each size that the machine has what the
// container names, else what its pod names for all, else none.
func (n Node) hugepages(pod *corev1.Pod, c *corev1.Container) (out []*cri.HugepageLimit) {
	limits := map[string]int64{}
	if pod.Spec.Resources != nil {
		limits = HugepageLimits(pod.Spec.Resources.Limits)
	}
	maps.Copy(limits, HugepageLimits(c.Resources.Limits))
	for _, size := range n.HugepageSizes {
		out = append(out, &cri.HugepageLimit{PageSize: size, Limit: uint64(limits[size])})
	}
	return out
}

// HugepageLimits are the bytes by size, as the kernel names sizes, that resources have.
func HugepageLimits(of corev1.ResourceList) map[string]int64 {
	out := map[string]int64{}
	for name, q := range of {
		if size, ok := hugepageSize(name); ok {
			out[size] = q.Value()
		}
	}
	return out
}

// HugepageSizes are the kernel's names of the sizes that a capacity has, in order.
func HugepageSizes(capacity corev1.ResourceList) []string {
	return slices.Sorted(maps.Keys(HugepageLimits(capacity)))
}

// hugepageSize turns hugepages-2Mi into the kernel's 2MB.
func hugepageSize(name corev1.ResourceName) (string, bool) {
	const prefix = corev1.ResourceHugePagesPrefix
	if len(name) <= len(prefix) || string(name[:len(prefix)]) != prefix {
		return "", false
	}
	q, err := resource.ParseQuantity(string(name[len(prefix):]))
	if err != nil {
		return "", false
	}
	units := []string{"B", "KB", "MB", "GB", "TB"}
	v, i := q.Value(), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return strconv.FormatInt(v, 10) + units[i], true
}
