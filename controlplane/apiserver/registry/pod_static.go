package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
)

// ValidateStaticPod says what the API would have against a pod that a node reads from a
// manifest, by field.
func ValidateStaticPod(p *corev1.Pod) error {
	p = p.DeepCopy()
	defaultPod(p)
	errs := validateNewMetadata(p, true, validation.NameIsDNSSubdomain)
	return append(errs, validatePod(context.Background(), p, nil)...).ToAggregate()
}
