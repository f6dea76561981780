package plugin

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/apiserver/registry"
)

// CheckStaticPod says why a node is not to run a pod of a manifest, in upstream's words: the
// API would refuse to show it, or it refers to objects, which is an error as of
// PreventStaticPodAPIReferences.
func CheckStaticPod(p *corev1.Pod) error {
	if err := registry.ValidateStaticPod(p); err != nil {
		return fmt.Errorf("invalid pod: %w", err)
	}
	what, err := referred(p)
	if err == nil && what != "" {
		err = fmt.Errorf("static pods may not reference %s", what)
	}
	return err
}
