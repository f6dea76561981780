package scheduler_test

import (
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
)

// counted is what the process tells under a name with these values of labels.
func (w *world) counted(name string, values ...string) (n float64) {
	w.Helper()
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		w.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			if !slices.ContainsFunc(values, func(v string) bool {
				return !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetValue() == v })
			}) {
				n += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return n
}

// A figure is a metric and how much it is, or has grown.
type figure struct {
	name   string
	labels []string
	want   float64
}

// grows checks what a deed adds.
func (w *world) grows(what string, deed func(), figures ...figure) {
	w.Helper()
	before := make([]float64, len(figures))
	for i, f := range figures {
		before[i] = w.counted(f.name, f.labels...)
	}
	deed()
	for i, f := range figures {
		if got := w.counted(f.name, f.labels...) - before[i]; got != f.want {
			w.Errorf("%s: %s %v grows by %v, want %v", what, f.name, f.labels, got, f.want)
		}
	}
}

func (w *world) sees(what string, figures ...figure) {
	w.Helper()
	for _, f := range figures {
		if got := w.counted(f.name, f.labels...); got != f.want {
			w.Errorf("%s: %s %v is %v, want %v", what, f.name, f.labels, got, f.want)
		}
	}
}

func by(labels ...string) []string { return labels }

const (
	attempts    = "scheduler_schedule_attempts_total"
	pendingPods = "scheduler_pending_pods"
	refusedPods = "scheduler_unschedulable_pods"
	incoming    = "scheduler_queue_incoming_pods_total"
	points      = "scheduler_framework_extension_point_duration_seconds"
	evaluated   = "scheduler_plugin_evaluation_total"
)

// TestCountsAttempts: a pod is refused, waits, is woken by a node and bound.
func TestCountsAttempts(t *testing.T) {
	in(t, func(w *world) {
		w.node("small", "1")
		const profile = "default-scheduler"
		w.grows("a pod that fits", func() {
			w.pod("fits", "500m")
			if w.where("fits", time.Second) != "small" {
				t.Fatal("not placed")
			}
		}, figure{attempts, by("scheduled", profile), 1}, figure{attempts, by("unschedulable"), 0},
			figure{"scheduler_scheduling_attempt_duration_seconds", by("scheduled", profile), 1},
			figure{"scheduler_scheduling_algorithm_duration_seconds", nil, 1},
			figure{"scheduler_pod_scheduling_attempts", nil, 1},
			figure{"scheduler_pod_scheduling_sli_duration_seconds", by("1"), 1},
			figure{incoming, by("active", "UnschedulablePodAdd"), 1},
			figure{"scheduler_event_handling_duration_seconds", by("UnschedulablePodAdd"), 1},
			figure{"scheduler_event_handling_duration_seconds", by("AssignedPodAdd"), 1},
			figure{points, by("PreEnqueue", "Success", profile), 1}, figure{points, by("PreFilter", "Success", profile), 1},
			figure{points, by("Filter", "Success", profile), 1}, figure{points, by("Reserve", "Success", profile), 1},
			figure{points, by("Bind", "Success", profile), 1}, figure{points, by("PostFilter"), 0},
			figure{evaluated, by("NodeResourcesFit", "Filter", profile), 1})
		w.sees("a pod that fits", figure{"scheduler_cache_size", by("nodes"), 1}, figure{"scheduler_cache_size", by("pods"), 1},
			figure{"scheduler_cache_size", by("assumed_pods"), 0}, figure{pendingPods, nil, 0}, figure{"scheduler_goroutines", by("binding"), 0})

		w.grows("a pod that does not fit", func() {
			w.pod("big", "3")
			if w.where("big", time.Second) != "" {
				t.Fatal("placed")
			}
		}, figure{attempts, by("unschedulable", profile), 1}, figure{attempts, by("scheduled"), 0}, figure{attempts, by("error"), 0},
			figure{incoming, by("unschedulable", "ScheduleAttemptFailure"), 1}, figure{points, by("PostFilter", "Unschedulable", profile), 1},
			figure{"scheduler_preemption_attempts_total", nil, 1}, figure{"scheduler_preemption_victims", nil, 0})
		w.sees("a pod that does not fit", figure{pendingPods, by("unschedulable"), 1}, figure{pendingPods, by("active"), 0},
			figure{refusedPods, by("NodeResourcesFit", profile), 1}, figure{refusedPods, nil, 1})

		w.grows("a node that has room", func() {
			w.node("large", "4")
			if w.where("big", 2*time.Second) != "large" {
				t.Fatal("not placed")
			}
		}, figure{attempts, by("scheduled"), 1}, figure{"scheduler_pod_scheduling_sli_duration_seconds", nil, 1},
			figure{"scheduler_pod_scheduled_after_flush_total", nil, 0})
		w.sees("a node that has room", figure{pendingPods, nil, 0}, figure{refusedPods, nil, 0}, figure{"scheduler_cache_size", by("pods"), 2})

		w.grows("a pod that no event helps", func() {
			w.pod("huge", "9")
			w.where("huge", 6*time.Minute)
		}, figure{incoming, by("active", "UnschedulableTimeout"), 1}, figure{attempts, by("unschedulable"), 2})
		if err := w.client.CoreV1().Pods("default").Delete(w.ctx, "huge", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.sees("a pod that is gone", figure{pendingPods, nil, 0}, figure{refusedPods, nil, 0})
	})
}

// TestCountsGates: a gated pod is no attempt until its gates are gone.
func TestCountsGates(t *testing.T) {
	in(t, func(w *world) {
		w.node("one", "2")
		w.grows("a gated pod", func() {
			w.pod("a", "1", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/x"}} })
			w.where("a", time.Minute)
		}, figure{attempts, nil, 0}, figure{incoming, by("unschedulable", "UnschedulablePodAdd"), 1}, figure{points, by("PreEnqueue", "UnschedulableAndUnresolvable"), 1})
		w.sees("a gated pod", figure{pendingPods, by("gated"), 1}, figure{pendingPods, by("unschedulable"), 0}, figure{refusedPods, by("SchedulingGates", "default-scheduler"), 1})
		w.grows("a pod whose gates are gone", func() {
			p := w.get("a")
			p.Spec.SchedulingGates = nil
			if _, err := w.client.CoreV1().Pods("default").Update(w.ctx, p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if w.where("a", time.Second) != "one" {
				t.Fatal("not placed")
			}
		}, figure{attempts, by("scheduled"), 1}, figure{incoming, by("active", "UnschedulablePodUpdatePodSchedulingGatesEliminated"), 1})
		w.sees("a pod whose gates are gone", figure{pendingPods, nil, 0}, figure{refusedPods, nil, 0})
	})
}

// TestCountsPreemption: one attempt finds victims.
func TestCountsPreemption(t *testing.T) {
	in(t, func(w *world) {
		w.node("one", "2")
		c := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 9}
		if _, err := w.client.SchedulingV1().PriorityClasses().Create(w.ctx, c, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pod("low", "1500m")
		if w.where("low", time.Second) != "one" {
			t.Fatal("not placed")
		}
		w.grows("a pod that preempts", func() {
			w.pod("high", "1500m", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })
			w.where("high", time.Second)
		}, figure{"scheduler_preemption_attempts_total", nil, 1}, figure{"scheduler_preemption_victims", nil, 1},
			figure{points, by("PostFilter", "Success"), 1}, figure{attempts, by("unschedulable"), 1})
	})
}

// TestCountsErrors: a pod whose volume is not made in time is an error of an attempt
// and of a stage of volumes.
func TestCountsErrors(t *testing.T) {
	in(t, func(w *world) {
		w.node("one", "2")
		late, class := storagev1.VolumeBindingWaitForFirstConsumer, "slow"
		if _, err := w.client.StorageV1().StorageClasses().Create(w.ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "example.com/maker", VolumeBindingMode: &late,
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.CoreV1().PersistentVolumeClaims("default").Create(w.ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.grows("volumes that do not come", func() {
			w.pod("a", "1", func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
				}}}
			})
			w.where("a", 10*time.Minute+500*time.Millisecond)
		}, figure{attempts, by("error"), 1}, figure{attempts, by("scheduled"), 0}, figure{points, by("PreBind", "Error"), 1},
			figure{"scheduler_volume_scheduling_stage_error_total", by("bind"), 1}, figure{incoming, by("backoff", "ScheduleAttemptFailure"), 1})
	})
}
