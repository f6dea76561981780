package instances

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// SameAddresses reports whether both are the same addresses, in whatever order.
func SameAddresses(a, b []corev1.NodeAddress) bool {
	order := func(list []corev1.NodeAddress) []corev1.NodeAddress {
		return slices.SortedFunc(slices.Values(list), func(x, y corev1.NodeAddress) int {
			return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.Address, y.Address))
		})
	}
	return slices.Equal(order(a), order(b))
}
