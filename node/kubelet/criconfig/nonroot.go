package criconfig

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
)

// checkNonRoot refuses a container that must not run as root but would.
func checkNonRoot(pod *corev1.Pod, c *corev1.Container, sc corev1.SecurityContext, image *cri.Image) error {
	if sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot {
		return nil
	}
	who := podspec.Format(pod)
	switch {
	case sc.RunAsUser != nil && *sc.RunAsUser == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy (pod: %q, container: %s)", who, c.Name)
	case sc.RunAsUser != nil:
		return nil
	case image.Username != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root (pod: %q, container: %s)", image.Username, who, c.Name)
	case image.Uid == nil || image.Uid.Value == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root (pod: %q, container: %s)", who, c.Name)
	}
	return nil
}
