package horizontalpodautoscaler

import (
	"fmt"
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// A podState is what differs between the pods of a case.
type podState string

const (
	running  podState = ""
	unready  podState = "unready"  // never was
	starting podState = "starting" // its CPU usage may be that of the start
	pending  podState = "pending"
	over     podState = "failed"
	ending   podState = "ending"
)

func pods(n int, request string, states ...podState) (all []*corev1.Pod) {
	for i := range n {
		state := running
		if i < len(states) {
			state = states[i]
		}
		start := metav1.Time{Time: now.Add(-3 * time.Minute)}
		ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: start}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)}, Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &start}}
		switch state {
		case unready:
			ready.Status = corev1.ConditionFalse
		case starting:
			start.Time = now.Add(-time.Minute)
			ready.LastTransitionTime = start
		case pending:
			p.Status.Phase = corev1.PodPending
		case over:
			p.Status.Phase = corev1.PodFailed
		case ending:
			p.DeletionTimestamp = &metav1.Time{Time: now}
		}
		p.Status.Conditions = []corev1.PodCondition{ready}
		c := corev1.Container{Name: "c"}
		if request != "" {
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(request)}
		}
		p.Spec.Containers = []corev1.Container{c}
		all = append(all, p)
	}
	return all
}

func levels(values ...int64) samples {
	all := samples{}
	for i, v := range values {
		all[fmt.Sprint("p", i)] = sample{now.Add(-time.Second), time.Minute, v}
	}
	return all
}

func calculate(replicas int32, p []*corev1.Pod) calculation {
	return calculation{selected: p, spec: replicas, status: replicas, tolerances: tolerances{0.1, 0.1},
		initialization: 2 * time.Minute, delay: 10 * time.Second, now: now}
}

func TestUtilization(t *testing.T) {
	for _, tt := range []struct {
		name      string
		replicas  int32
		pods      []*corev1.Pod
		levels    samples
		target    int32
		want      string // replicas, percent, average
		tolerance *tolerances
	}{
		{"up", 3, pods(3, "1"), levels(300, 500, 700), 30, "5 50 500", nil},
		{"up less for one that is not ready", 3, pods(3, "1", unready), levels(300, 500, 700), 30, "4 60 600", nil},
		{"up less for one that starts", 3, pods(3, "1", starting), levels(300, 500, 700), 30, "4 60 600", nil},
		{"not up for two that are not ready", 3, pods(3, "1", running, unready, unready), levels(400, 500, 700), 30, "3 40 400", nil},
		{"not up for two that start", 3, pods(3, "1", running, starting, starting), levels(400, 500, 700), 30, "3 40 400", nil},
		{"up without failed ones", 2, pods(4, "1", running, running, over, over), levels(500, 700), 30, "4 60 600", nil},
		{"up without those that end", 2, pods(4, "1", running, running, ending, ending), levels(500, 700), 30, "4 60 600", nil},
		{"down", 5, pods(5, "1"), levels(100, 300, 500, 250, 250), 50, "3 28 280", nil},
		{"down, one not ready", 5, pods(5, "1", unready), levels(100, 300, 500, 250, 250), 50, "3 32 325", nil},
		{"down without failed ones", 5, pods(7, "1", running, running, running, running, running, over, over), levels(100, 300, 500, 250, 250), 50, "3 28 280", nil},
		{"down without those that end and still report", 5, pods(7, "1", running, running, running, running, running, ending, ending),
			levels(100, 300, 500, 250, 250, 900, 900), 50, "3 28 280", nil},
		{"tolerated", 3, pods(3, "1"), levels(1010, 1030, 1020), 100, "3 102 1020", nil},
		{"not tolerated at nought", 3, pods(3, "1"), levels(909, 1010, 1111), 100, "4 101 1010", &tolerances{0, 0}},
		{"tolerated at 200% up", 3, pods(3, "1"), levels(2000, 2000, 2000), 100, "3 200 2000", &tolerances{0.1, 2}},
		{"tolerated at 80% down", 3, pods(3, "1"), levels(300, 300, 300), 100, "3 30 300", &tolerances{0.8, 0.1}},
		{"more samples than pods", 4, pods(4, "1"), levels(4000, 9500, 3000, 7000, 3200, 2000), 100, "24 587 5875", nil},
		{"missing, down less", 4, pods(4, "1"), levels(400, 95), 100, "3 24 247", nil},
		{"missing, equal", 2, pods(2, "1"), levels(1000), 100, "2 100 1000", nil},
		{"missing, not up", 2, pods(2, "1"), levels(1900), 100, "2 190 1900", nil},
		{"missing, not down", 2, pods(2, "1"), levels(600), 100, "2 60 600", nil},
		{"missing and not ready, not down", 3, pods(3, "1", unready), levels(100, 450), 50, "3 45 450", nil},
		{"missing and starting, not down", 3, pods(3, "1", starting), levels(100, 450), 50, "3 45 450", nil},
		{"missing and not ready, up", 3, pods(3, "1", unready), levels(100, 2000), 50, "4 200 2000", nil},
		{"missing and not ready, down", 4, pods(4, "1", unready), levels(100, 100, 100), 50, "3 10 100", nil},
		{"pods of a rolling update", 2, pods(3, "1"), levels(100, 100), 50, "2 10 100", nil},
		{"a pod without start time", 3, pods(3, "1", pending), levels(300, 500, 700), 30, "4 60 600", nil},
		{"none", 2, nil, levels(5), 50, "no pods returned by selector while calculating replica count", nil},
		{"none ready", 1, pods(1, "1", unready), levels(5), 50, "did not receive metrics for targeted pods (pods might be unready)", nil},
		{"others' samples", 1, pods(2, "1", over), samples{"other": {value: 9}}, 50, "no metrics returned matched known pods", nil},
		{"no request", 1, pods(1, ""), levels(200), 100, "missing request for cpu in container c of Pod p0", nil},
		{"more than an int32", 3, pods(3, "1m"), levels(math.MaxInt64, math.MaxInt64, 1), 1, "2147483647 2147483647 3074457345618258602", nil},
		{"requests without end", 2, pods(2, "1e999999999"), levels(5, 5), 50, "0 0 5", nil},
	} {
		c := calculate(tt.replicas, tt.pods)
		if tt.tolerance != nil {
			c.tolerances = *tt.tolerance
		}
		n, part, average, err := c.utilization(tt.levels, corev1.ResourceCPU, "", tt.target)
		got := fmt.Sprint(n, part, average)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A pod's CPU usage counts by how long the pod runs, by when its readiness
// changed, and by when the usage was measured.
func TestStarting(t *testing.T) {
	for _, tt := range []struct {
		name                   string
		start, changed, sample time.Duration // ago
		ready                  corev1.ConditionStatus
		want                   bool
	}{
		{"new and not ready", 30 * time.Second, 25 * time.Second, 0, corev1.ConditionFalse, true},
		{"new, measured over a time before it was ready", 90 * time.Second, 50 * time.Second, 0, corev1.ConditionTrue, true},
		{"new, measured since", 110 * time.Second, 70 * time.Second, 0, corev1.ConditionTrue, false},
		{"new, measured long ago", 110 * time.Second, 70 * time.Second, 30 * time.Second, corev1.ConditionTrue, true},
		{"old and ready", time.Hour, time.Minute, time.Minute, corev1.ConditionTrue, false},
		{"old and never ready", time.Hour, time.Hour - 5*time.Second, 0, corev1.ConditionFalse, true},
		{"old and no longer ready", time.Hour, time.Minute, 0, corev1.ConditionFalse, false},
	} {
		pod := pods(1, "1")[0]
		pod.Status.StartTime.Time = now.Add(-tt.start)
		pod.Status.Conditions[0] = corev1.PodCondition{Type: corev1.PodReady, Status: tt.ready, LastTransitionTime: metav1.Time{Time: now.Add(-tt.changed)}}
		c := calculate(1, nil)
		if got := c.starting(pod, sample{now.Add(-tt.sample), time.Minute, 1}); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	c := calculate(1, nil)
	if !c.starting(&corev1.Pod{}, sample{}) {
		t.Error("a pod that nobody started counts")
	}
}

func TestAverage(t *testing.T) {
	for _, tt := range []struct {
		name     string
		replicas int32
		pods     []*corev1.Pod
		levels   samples
		target   int64
		want     string
	}{
		{"up", 3, pods(3, ""), levels(20000, 10000, 30000), 15000, "4 20000"},
		{"up, readiness is of no concern", 3, pods(3, "", running, running, unready), levels(50000, 10000, 30000), 15000, "6 30000"},
		{"up, the start is of no concern", 3, pods(3, "", unready, running, starting), levels(50000, 15000, 30000), 15000, "7 31666"},
		{"up one", 1, pods(1, ""), levels(8600), 4400, "2 8600"},
		{"down", 5, pods(5, ""), levels(12000, 12000, 12000, 12000, 12000), 20000, "3 12000"},
		{"tolerated", 3, pods(3, ""), levels(20000, 21000, 21000), 20000, "3 20666"},
		{"missing, equal", 5, pods(5, ""), levels(20000, 19000, 21000), 20000, "5 20000"},
		{"missing, down less", 3, pods(3, ""), levels(5000, 5000), 20000, "2 5000"},
		{"missing, up less", 2, pods(2, ""), levels(60000), 20000, "3 60000"},
		{"pending ones are not up yet", 3, pods(3, "", running, running, pending), levels(20000, 20000), 10000, "4 20000"},
		{"none", 3, nil, levels(1), 1, "no pods returned by selector while calculating replica count"},
		{"below zero", 3, pods(3, ""), levels(-5000, -5000, -5000), 1000, "0 -5000"},
		{"more than fits", 2, pods(2, ""), levels(math.MaxInt64, math.MaxInt64), 1, "2147483647 4611686018427387903"},
		{"less than fits", 2, pods(2, ""), levels(math.MinInt64, math.MinInt64), 1, "0 -4611686018427387904"},
	} {
		c := calculate(tt.replicas, tt.pods)
		n, average, err := c.average(tt.levels, "", tt.target)
		got := fmt.Sprint(n, average)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestTotal(t *testing.T) {
	for _, tt := range []struct {
		name          string
		replicas      int32
		pods          []*corev1.Pod
		value, target int64
		want          string
	}{
		{"up", 3, pods(3, ""), 20000, 15000, "4"},
		{"up by those that are ready", 3, pods(3, "", unready, running, unready), 50000, 10000, "5"},
		{"up by those that are ready, of an external one", 3, pods(3, "", unready, running, unready), 8600, 4400, "2"},
		{"down", 5, pods(5, ""), 12000, 20000, "3"},
		{"tolerated", 3, pods(3, ""), 20666, 20000, "3"},
		{"from zero", 0, nil, 35000, 10000, "4"},
		{"stays at zero", 0, nil, 0, 10000, "0"},
		{"to zero", 3, pods(3, ""), 0, 10000, "0"},
		{"none", 3, nil, 20000, 10000, "unable to calculate ready pods: no pods returned by selector while calculating replica count"},
		{"more than fits", 3, pods(3, ""), math.MaxInt64, 1, "2147483647"},
		{"more than fits, from zero", 0, nil, math.MaxInt64, 1, "2147483647"},
		{"below zero", 3, pods(3, ""), math.MinInt64, 1, "0"},
	} {
		c := calculate(tt.replicas, tt.pods)
		n, err := c.total(tt.value, tt.target)
		got := fmt.Sprint(n)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestPerPod(t *testing.T) {
	for _, tt := range []struct {
		name          string
		replicas      int32
		value, target int64
		want          string
	}{
		{"up", 3, 20000, 5000, "4 6667"},
		{"up, of an external one", 3, 8600, 2150, "4 2867"},
		{"tolerated", 4, 20166, 5000, "4 5042"},
		{"down", 6, 8600, 4000, "3 1434"},
		{"to zero", 2, 0, 5000, "0 0"},
		{"nothing runs", 0, 8000, 5000, "2 8000"},
		{"nothing runs nor waits", 0, 0, 5000, "0 0"},
		{"more than fits", 1, math.MaxInt64, 1, "2147483647 9223372036854775807"},
		{"as much as fits", 1, math.MaxInt64, math.MaxInt64, "1 9223372036854775807"},
		{"below zero", 2, -8000, 5000, "0 -4000"},
	} {
		c := calculate(tt.replicas, nil)
		if got := fmt.Sprint(c.perPod(tt.value, tt.target)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestRequests(t *testing.T) {
	cpu := func(s string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(s)}}
	}
	always := corev1.ContainerRestartPolicyAlways
	spec := corev1.PodSpec{
		Containers:     []corev1.Container{{Name: "a", Resources: cpu("100m")}, {Name: "b", Resources: cpu("200m")}, {Name: "none"}},
		InitContainers: []corev1.Container{{Name: "once", Resources: cpu("9")}, {Name: "side", Resources: cpu("50m"), RestartPolicy: &always}},
	}
	full := spec.DeepCopy()
	full.Containers = full.Containers[:2]
	whole := full.DeepCopy()
	whole.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
	memory := full.DeepCopy()
	memory.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}}
	for _, tt := range []struct {
		name      string
		spec      *corev1.PodSpec
		container string
		want      string
	}{
		{"all containers and sidecars", full, "", "350"},
		{"one container", &spec, "b", "200"},
		{"a sidecar", &spec, "side", "50"},
		{"what ends is not there", &spec, "once", "container once not found in Pod p"},
		{"no such container", &spec, "x", "container x not found in Pod p"},
		{"one has none", &spec, "", "missing request for cpu in container none of Pod p"},
		{"of the pod", whole, "", "1000"},
		{"of a container of such a pod", whole, "a", "100"},
		{"of the pod, as much as its start needs", memory, "", "9000"},
	} {
		got, err := requests([]*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: *tt.spec}}, tt.container, corev1.ResourceCPU)
		answer := fmt.Sprint(got["p"])
		if err != nil {
			answer = err.Error()
		}
		if answer != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, answer, tt.want)
		}
	}
}
