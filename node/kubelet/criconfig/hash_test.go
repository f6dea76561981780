package criconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The hash is the field's own, so that containers are adopted either way.
func TestContainerHash(t *testing.T) {
	if got := ContainerHash(&corev1.Container{Name: "test_container", Image: "foo/image:v1"}); got != "8e45cbd0" {
		t.Errorf("hash %s", got)
	}
	a, b := ContainerHash(&corev1.Container{Name: "c", Image: "x"}), ContainerHash(&corev1.Container{Name: "c", Image: "y"})
	if a == b {
		t.Error("another image, the same hash")
	}
}
