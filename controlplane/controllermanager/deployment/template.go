package deployment

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"knarr/internal/equal"
)

// sameTemplate compares templates but for the hash label.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	return equal.Objects(withoutHash(a), withoutHash(b))
}

func withoutHash(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	if _, ok := t.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; !ok {
		return t
	}
	c := *t
	c.Labels = make(map[string]string, len(t.Labels))
	for k, v := range t.Labels {
		if k != appsv1.DefaultDeploymentUniqueLabelKey {
			c.Labels[k] = v
		}
	}
	return &c
}
