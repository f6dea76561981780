package tainteviction

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestTolerated(t *testing.T) {
	taint := func(key string) corev1.Taint { return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute} }
	tolerate := func(key string, seconds *int64) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}
	}
	for _, c := range []struct {
		name        string
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		stay        time.Duration
		forever     bool
	}{
		{"no taint", nil, nil, 0, true},
		{"not tolerated", []corev1.Taint{taint("a")}, nil, 0, false},
		{"for ever", []corev1.Taint{taint("a")}, []corev1.Toleration{tolerate("a", nil)}, 0, true},
		{"one of two", []corev1.Taint{taint("a"), taint("b")}, []corev1.Toleration{tolerate("a", nil)}, 0, false},
		{"the shorter time", []corev1.Taint{taint("a"), taint("b")}, []corev1.Toleration{tolerate("a", new(int64(300))), tolerate("b", new(int64(10)))}, 10 * time.Second, false},
		{"one for ever, one not", []corev1.Taint{taint("a"), taint("b")}, []corev1.Toleration{tolerate("a", nil), tolerate("b", new(int64(10)))}, 10 * time.Second, false},
		{"no time at all", []corev1.Taint{taint("a")}, []corev1.Toleration{tolerate("a", new(int64(-5)))}, 0, false},
	} {
		stay, forever := tolerated(c.taints, c.tolerations)
		if stay != c.stay || forever != c.forever {
			t.Errorf("%s: %v %v, want %v %v", c.name, stay, forever, c.stay, c.forever)
		}
	}
}
