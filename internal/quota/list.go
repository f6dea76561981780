package quota

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Add is a + b, name by name.
func Add(a, b corev1.ResourceList) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for n, q := range a {
		sum[n] = q.DeepCopy()
	}
	for n, q := range b {
		if have, ok := sum[n]; ok {
			have.Add(q)
			sum[n] = have
		} else {
			sum[n] = q.DeepCopy()
		}
	}
	return sum
}

// More is what a has more than b. Nothing that a has less of is in it.
func More(a, b corev1.ResourceList) corev1.ResourceList {
	more := corev1.ResourceList{}
	for n, q := range a {
		left := q.DeepCopy()
		left.Sub(b[n])
		if left.Sign() > 0 {
			more[n] = left
		}
	}
	return more
}

// Only are the entries of list under names.
func Only(list corev1.ResourceList, names []corev1.ResourceName) corev1.ResourceList {
	only := corev1.ResourceList{}
	for _, n := range names {
		if q, ok := list[n]; ok {
			only[n] = q.DeepCopy()
		}
	}
	return only
}

// Equal says that both lists have the same names and amounts.
func Equal(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	for n, q := range a {
		if other, ok := b[n]; !ok || q.Cmp(other) != 0 {
			return false
		}
	}
	return true
}

// Over are the names of which use is more than hard allows, sorted.
func Over(use, hard corev1.ResourceList) (names []corev1.ResourceName) {
	for n, q := range use {
		if limit, ok := hard[n]; ok && q.Cmp(limit) > 0 {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names
}

// Negative are the names of amounts below zero, sorted.
func Negative(list corev1.ResourceList) (names []corev1.ResourceName) {
	for n, q := range list {
		if q.Sign() < 0 {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names
}

// Zero has all names, and none of anything.
func Zero(names []corev1.ResourceName) corev1.ResourceList {
	zero := corev1.ResourceList{}
	for _, n := range names {
		zero[n] = resource.Quantity{Format: resource.DecimalSI}
	}
	return zero
}

// Text is list as refusals show it.
func Text(list corev1.ResourceList) string {
	parts := make([]string, 0, len(list))
	for _, n := range slices.Sorted(maps.Keys(list)) {
		q := list[n]
		parts = append(parts, string(n)+"="+q.String())
	}
	return strings.Join(parts, ",")
}
