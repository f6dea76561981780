package job

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestGoes: a pod without finalizers is there until its time to end is over.
func TestGoes(t *testing.T) {
	now := metav1.NewTime(time.Unix(1, 0))
	for _, c := range []struct {
		name string
		pod  metav1.ObjectMeta
		want bool
	}{
		{"not deleted", metav1.ObjectMeta{}, false},
		{"ends", metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: new(int64(30))}, false},
		{"ended", metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: new(int64(0))}, true},
		{"held", metav1.ObjectMeta{DeletionTimestamp: &now, DeletionGracePeriodSeconds: new(int64(0)), Finalizers: []string{"x"}}, false},
	} {
		if got := goes(&corev1.Pod{ObjectMeta: c.pod}); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
