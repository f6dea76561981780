package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// ValidateStaticPod says what the API would have against a pod that a node reads from a
// manifest, by field.
func ValidateStaticPod(p *corev1.Pod) error {
	p = p.DeepCopy()
	pods.Defaults(p)
	return append(pods.CheckMetadata(p, nil), pods.ValidateObject(context.Background(), p, nil)...).ToAggregate()
}
