package job

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFinalizers: a pod is counted once when it ends with the finalizer, and once when it
// has it no more.
func TestFinalizers(t *testing.T) {
	pod := func(phase corev1.PodPhase, finalizers ...string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Finalizers: finalizers}, Status: corev1.PodStatus{Phase: phase}}
	}
	running, ended, free := pod(corev1.PodRunning, batchv1.JobTrackingFinalizer), pod(corev1.PodFailed, batchv1.JobTrackingFinalizer), pod(corev1.PodFailed)
	for name, tt := range map[string]struct {
		was, now any
		add, del float64
	}{
		"it comes":             {nil, running, 0, 0},
		"it ends":              {running, ended, 1, 0},
		"it comes, and ended":  {nil, ended, 1, 0},
		"nothing changes":      {ended, ended, 0, 0},
		"the finalizer goes":   {ended, free, 0, 1},
		"it goes with it":      {ended, nil, 0, 1},
		"it goes without it":   {free, nil, 0, 0},
		"it ends and loses it": {running, free, 0, 0},
	} {
		add, del := valueOf(finalizers.WithLabelValues("add")), valueOf(finalizers.WithLabelValues("delete"))
		observeFinalizer(tt.was, tt.now)
		if a, d := valueOf(finalizers.WithLabelValues("add"))-add, valueOf(finalizers.WithLabelValues("delete"))-del; a != tt.add || d != tt.del {
			t.Errorf("%s: %v added, %v deleted", name, a, d)
		}
	}
}

// TestFinishedIndexes: indexes are counted as they finish, failed ones by the limit that
// they had.
func TestFinishedIndexes(t *testing.T) {
	job := &batchv1.Job{Spec: batchv1.JobSpec{Completions: new(int32(5)), CompletionMode: new(batchv1.IndexedCompletion), BackoffLimitPerIndex: new(int32(1))}}
	value := func(status string) float64 { return valueOf(finishedIndexes.WithLabelValues(status, "perIndex")) }
	succeeded, failed := value("succeeded"), value("failed")
	was := countsOf(job)
	job.Status.Succeeded, job.Status.CompletedIndexes, job.Status.FailedIndexes = 2, "0,1", new("2-3")
	was = observeStatus(was, job)
	observeStatus(was, job)
	if s, f := value("succeeded")-succeeded, value("failed")-failed; s != 2 || f != 2 {
		t.Errorf("%v succeeded, %v failed", s, f)
	}
}

// valueOf is what a counter or a gauge counts.
func valueOf(m prometheus.Metric) float64 {
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		return -1
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// TestManagers: names of controllers that users make up do not make series for ever.
func TestManagers(t *testing.T) {
	var m managers
	seen := map[string]bool{}
	for i := range 3 * mostManagers {
		seen[m.label(fmt.Sprint("a.example/", i))] = true
	}
	if len(seen) != mostManagers+1 || m.label("a.example/1") != "a.example/1" || m.label("a.example/late") != "other" {
		t.Errorf("%d labels", len(seen))
	}
}
