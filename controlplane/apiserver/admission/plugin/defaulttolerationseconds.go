package plugin

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/apiserver/admission"
)

// defaultTolerationSeconds lets a pod stay for some time, five minutes unless
// flags say otherwise, on a node that is not ready or unreachable.
type defaultTolerationSeconds struct{ tolerations [2]corev1.Toleration }

const stay = 300

func newDefaultTolerationSeconds(c Config) *defaultTolerationSeconds {
	until := func(key string, seconds *int64) corev1.Toleration {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(stay))}
		if seconds != nil {
			t.TolerationSeconds = seconds
		}
		return t
	}
	return &defaultTolerationSeconds{[2]corev1.Toleration{
		until(corev1.TaintNodeNotReady, c.NotReadySeconds), until(corev1.TaintNodeUnreachable, c.UnreachableSeconds),
	}}
}

func (*defaultTolerationSeconds) Name() string { return "DefaultTolerationSeconds" }

func (d *defaultTolerationSeconds) Admit(_ context.Context, a *admission.Attributes) error {
	pod := podWritten(a)
	if pod == nil {
		return nil
	}
	for i := range d.tolerations {
		if !tolerates(pod, d.tolerations[i].Key) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, *d.tolerations[i].DeepCopy())
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
