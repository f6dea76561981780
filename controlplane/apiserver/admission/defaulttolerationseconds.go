package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/apiserver/endpoints"
)

// defaultTolerationSeconds lets a pod stay five minutes on a node that is not
// ready or unreachable, unless it says otherwise.
type defaultTolerationSeconds struct{}

const stay = 300

func (defaultTolerationSeconds) Name() string { return "DefaultTolerationSeconds" }

func (defaultTolerationSeconds) Admit(_ context.Context, a *endpoints.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !is(a, "pods", "") || a.Operation != endpoints.Create && a.Operation != endpoints.Update {
		return nil
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !tolerates(pod, key) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(stay)),
			})
		}
	}
	return nil
}

func tolerates(pod *corev1.Pod, key string) bool {
	for _, t := range pod.Spec.Tolerations {
		if (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
