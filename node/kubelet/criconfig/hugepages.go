package criconfig

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func hugepages(c *corev1.Container) (out []*cri.HugepageLimit) {
	for name, q := range c.Resources.Limits {
		if size, ok := hugepageSize(name); ok {
			out = append(out, &cri.HugepageLimit{PageSize: size, Limit: uint64(q.Value())})
		}
	}
	return out
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
