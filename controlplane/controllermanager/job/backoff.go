package job

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The wait after a pod failed, doubled for each further one.
const (
	firstWait   = 10 * time.Second
	longestWait = 10 * time.Minute
)

// failures are a job's since its last success.
type failures struct {
	n    int
	last time.Time
}

// left is how long the next pod has to wait.
func (f failures) left(now time.Time) time.Duration {
	if f.n == 0 {
		return 0
	}
	return max(0, f.last.Add(waitAfter(f.n)).Sub(now))
}

func waitAfter(n int) time.Duration {
	if n > 16 { // beyond the longest by far
		return longestWait
	}
	return min(firstWait<<(n-1), longestWait)
}

// failuresOf adds what l shows anew to what is remembered.
func (r *reconciler) failuresOf(l *snapshot) failures {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.failures[l.job.UID]
	var success time.Time
	for _, p := range l.newOK {
		if t := ended(p, l.now); t.After(success) {
			success = t
		}
	}
	if !success.IsZero() {
		f = failures{}
	}
	for _, p := range l.newFailed {
		if t := ended(p, l.now); t.After(success) {
			f.n++
			if t.After(f.last) {
				f.last = t
			}
		}
	}
	return f
}

// remember keeps f once the status counts the pods it is made of.
func (r *reconciler) remember(uid types.UID, f failures) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.n == 0 {
		delete(r.failures, uid)
	} else {
		r.failures[uid] = f
	}
}

func (r *reconciler) forget(uid types.UID) { r.remember(uid, failures{}) }

// ended is when the pod's last container did.
func ended(p *corev1.Pod, now time.Time) (last time.Time) {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for _, c := range list {
			if end := c.State.Terminated; end != nil && end.FinishedAt.After(last) {
				last = end.FinishedAt.Time
			}
		}
	}
	if !last.IsZero() {
		return last
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	if p.DeletionTimestamp != nil {
		return p.DeletionTimestamp.Time
	}
	return now
}
