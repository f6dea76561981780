package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"knarr/controlplane/apiserver/admission"
)

// limitPodHardAntiAffinityTopology lets a pod keep others from its own node
// alone, not from a whole zone.
type limitPodHardAntiAffinityTopology struct{}

func (limitPodHardAntiAffinityTopology) Name() string { return "LimitPodHardAntiAffinityTopology" }

func (limitPodHardAntiAffinityTopology) Validate(_ context.Context, a *admission.Attributes) error {
	pod := podWritten(a)
	if pod == nil || pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return apierrors.NewForbidden(a.Resource.GroupResource(), pod.Name, fmt.Errorf(
				"affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key %v is allowed", term.TopologyKey, corev1.LabelHostname))
		}
	}
	return nil
}

// podWritten is the pod that is created or updated as a whole; nil for all
// other writes.
func podWritten(a *admission.Attributes) *corev1.Pod {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !is(a, "pods", "") || a.Operation != admission.Create && a.Operation != admission.Update {
		return nil
	}
	return pod
}
