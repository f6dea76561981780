package horizontalpodautoscaler

import (
	"errors"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// A sample is what a metrics API says of one pod, in thousandths.
type sample struct {
	at     time.Time
	window time.Duration
	value  int64
}

// samples are by the pod's name.
type samples map[string]sample

// tolerances are how far usage may be from its target before replicas change,
// as parts of the target.
type tolerances struct{ down, up float64 }

func (t tolerances) within(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// A calculation is what one look at an autoscaler's target has in common for
// all its metrics.
type calculation struct {
	selected []*corev1.Pod
	// spec and status are the target's replicas: those asked for, those there.
	spec, status int32
	tolerances
	// initialization is how long after its start a pod's CPU usage may be that
	// of starting, delay how long its readiness may be the initial one.
	initialization, delay time.Duration
	now                   time.Time
}

var (
	errNoPods    = errors.New("no pods returned by selector while calculating replica count")
	errNoMetrics = errors.New("did not receive metrics for targeted pods (pods might be unready)")
)

// replicas are as many as bring the ratio of usage to target to one. ratio
// compares samples with the target; most is what a pod without a sample counts
// for when replicas would be removed. When they would be added it counts for
// nothing, and so does a pod that is not ready.
func (c *calculation) replicas(of samples, resource corev1.ResourceName, ratio func(samples) (float64, error), most func(pod string) int64) (int32, error) {
	if len(c.selected) == 0 {
		return 0, errNoPods
	}
	ready, unready, missing, ignored := c.group(of, resource)
	for pod := range unready.Union(ignored) {
		delete(of, pod)
	}
	if len(of) == 0 {
		return 0, errNoMetrics
	}
	first, err := ratio(of)
	if err != nil {
		return 0, err
	}
	addUnready := len(unready) > 0 && first > 1
	if !addUnready && len(missing) == 0 {
		if c.within(first) {
			return c.spec, nil
		}
		return replicasAt(first, ready), nil
	}
	for pod := range missing {
		switch {
		case first < 1:
			of[pod] = sample{value: most(pod)}
		case first > 1:
			of[pod] = sample{}
		}
	}
	if addUnready {
		for pod := range unready {
			of[pod] = sample{}
		}
	}
	again, err := ratio(of)
	if err != nil {
		return 0, err
	}
	// What the assumptions turn around is left alone.
	if c.within(again) || first < 1 && again > 1 || first > 1 && again < 1 {
		return c.spec, nil
	}
	n := replicasAt(again, len(of))
	if again < 1 && n > c.spec || again > 1 && n < c.spec {
		return c.spec, nil
	}
	return n, nil
}

// replicasAt is how many replicas the load of n at ratio needs.
func replicasAt(ratio float64, n int) int32 { return max(0, saturated(math.Ceil(ratio*float64(n)))) }

// group tells the pods whose samples count from those that are not ready, those
// without a sample, and those that end.
func (c *calculation) group(of samples, resource corev1.ResourceName) (ready int, unready, missing, ignored sets.Set[string]) {
	unready, missing, ignored = sets.New[string](), sets.New[string](), sets.New[string]()
	for _, pod := range c.selected {
		s, measured := of[pod.Name]
		switch {
		case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed:
			ignored.Insert(pod.Name)
		case pod.Status.Phase == corev1.PodPending:
			unready.Insert(pod.Name)
		case !measured:
			missing.Insert(pod.Name)
		case resource == corev1.ResourceCPU && c.starting(pod, s):
			unready.Insert(pod.Name)
		default:
			ready++
		}
	}
	return ready, unready, missing, ignored
}

// starting says that a pod's CPU usage may be that of its start.
func (c *calculation) starting(pod *corev1.Pod, s sample) bool {
	cond := readiness(pod)
	if cond == nil || pod.Status.StartTime == nil {
		return true
	}
	start, changed := pod.Status.StartTime.Time, cond.LastTransitionTime.Time
	if start.Add(c.initialization).After(c.now) {
		// One whole window has to be from after the change.
		return cond.Status == corev1.ConditionFalse || s.at.Before(changed.Add(s.window))
	}
	// It was never ready.
	return cond.Status == corev1.ConditionFalse && start.Add(c.delay).After(changed)
}

func readiness(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c
		}
	}
	return nil
}

// utilization compares usage with a part of what the pods request, in percent.
// It says how many percent it is, and the average usage of a pod.
func (c *calculation) utilization(of samples, resource corev1.ResourceName, container string, target int32) (n, used int32, average int64, err error) {
	var requested map[string]int64
	known := false
	n, err = c.replicas(of, resource, func(s samples) (float64, error) {
		if requested == nil {
			var err error
			if requested, err = requests(c.selected, container, resource); err != nil {
				return 0, err
			}
		}
		part, mean, err := usage(s, requested)
		if !known {
			known, used, average = true, part, mean
		}
		return float64(part) / float64(target), err
	}, func(pod string) int64 {
		return saturatedPart(requested[pod], int64(max(100, target)))
	})
	return n, used, average, err
}

// usage is what the samples of pods with requests are in percent of these, and
// their average.
func usage(of samples, requested map[string]int64) (part int32, average int64, err error) {
	var total, requests, n int64
	for pod, s := range of {
		if request, ok := requested[pod]; ok {
			total, requests, n = sum(total, s.value), sum(requests, request), n+1
		}
	}
	if requests == 0 {
		return 0, 0, errors.New("no metrics returned matched known pods")
	}
	return percent(total, requests), total / n, nil
}

// saturatedPart is so many percent of n.
func saturatedPart(n, percent int64) int64 {
	if n > math.MaxInt64/percent {
		return math.MaxInt64
	}
	return n * percent / 100
}

// average compares the pods' average with a target, both in thousandths.
func (c *calculation) average(of samples, resource corev1.ResourceName, target int64) (n int32, average int64, err error) {
	known := false
	n, err = c.replicas(of, resource, func(s samples) (float64, error) {
		var total int64
		for _, one := range s {
			total = sum(total, one.value)
		}
		mean := total / int64(len(s))
		if !known {
			known, average = true, mean
		}
		return float64(mean) / float64(target), nil
	}, func(string) int64 { return target })
	return n, average, err
}

// total compares one value with a target that all pods that are ready reach
// together.
func (c *calculation) total(value, target int64) (int32, error) {
	ratio := float64(value) / float64(target)
	if c.spec == 0 {
		return replicasAt(ratio, 1), nil
	}
	if c.within(ratio) {
		return c.spec, nil
	}
	if len(c.selected) == 0 {
		return 0, fmt.Errorf("unable to calculate ready pods: %w", errNoPods)
	}
	ready := 0
	for _, pod := range c.selected {
		if cond := readiness(pod); pod.Status.Phase == corev1.PodRunning && cond != nil && cond.Status == corev1.ConditionTrue {
			ready++
		}
	}
	return replicasAt(ratio, ready), nil
}

// perPod compares one value with a target of each pod, ready or not. It says
// what a pod has of the value.
func (c *calculation) perPod(value, target int64) (n int32, average int64) {
	n = c.status
	if !c.within(float64(value) / (float64(target) * float64(n))) {
		n = replicasAt(float64(value)/float64(target), 1)
	}
	if c.status == 0 {
		return n, value
	}
	mean := math.Ceil(float64(value) / float64(c.status))
	if mean >= math.MaxInt64 {
		return n, math.MaxInt64
	}
	return n, int64(mean)
}
