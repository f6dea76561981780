package plugin

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/registry"
)

// extendedResourceToleration lets pods that ask for an extended resource onto
// the nodes that are tainted with its name.
type extendedResourceToleration struct{}

func (extendedResourceToleration) Name() string { return "ExtendedResourceToleration" }

func (extendedResourceToleration) Admit(_ context.Context, a *admission.Attributes) error {
	pod := podWritten(a)
	if pod == nil {
		return nil
	}
	asked := map[corev1.ResourceName]bool{}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				if registry.IsExtended(name) {
					asked[name] = true
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		tolerate(pod, corev1.Toleration{Key: string(name), Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	return nil
}

// tolerate puts t in the place of those that tolerate the same, or at the end.
func tolerate(pod *corev1.Pod, t corev1.Toleration) {
	found := false
	for i := range pod.Spec.Tolerations {
		if pod.Spec.Tolerations[i].MatchToleration(&t) {
			pod.Spec.Tolerations[i], found = t, true
		}
	}
	if !found {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
	}
}
