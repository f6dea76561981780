package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/scheduler/framework"
	"knarr/internal/run"
)

// writes are the requests on their way to the API server: in order for each
// pod, at once for different pods, so many at a time. Nothing runs while there
// is nothing to write.
type writes struct {
	mu      sync.Mutex
	lines   map[types.UID][]func(context.Context)
	ready   []types.UID
	workers int
	most    int
	wg      run.Group
}

func newWrites(most int) *writes {
	return &writes{lines: map[types.UID][]func(context.Context){}, most: most}
}

// do does f after all that was to be done for the pod before. It never waits.
func (w *writes) do(ctx context.Context, pod types.UID, f func(context.Context)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line, busy := w.lines[pod]
	w.lines[pod] = append(line, f)
	if busy {
		return
	}
	w.ready = append(w.ready, pod)
	if w.workers < w.most {
		w.workers++
		w.wg.Go("scheduler: bind", func() { w.work(ctx) })
	}
}

// busy counts the goroutines that write.
func (w *writes) busy() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.workers
}

func (w *writes) work(ctx context.Context) {
	for {
		pod, ok := w.take(ctx)
		if !ok {
			return
		}
		for f := w.next(pod); f != nil; f = w.next(pod) {
			safely(ctx, func() { f(ctx) })
		}
	}
}

// take gives a worker a pod, or ends it.
func (w *writes) take(ctx context.Context) (pod types.UID, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ready) == 0 || ctx.Err() != nil {
		w.ready = nil
		w.workers--
		return "", false
	}
	pod = w.ready[0]
	w.ready = w.ready[1:]
	return pod, true
}

func (w *writes) next(pod types.UID) func(context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := w.lines[pod]
	if len(line) == 0 {
		delete(w.lines, pod)
		return nil
	}
	w.lines[pod] = line[1:]
	return line[0]
}

// safely keeps a panic from ending the process, and reports whether there was
// one.
func safely(ctx context.Context, f func()) (panicked bool) {
	defer func() {
		if r := recover(); r != nil {
			panicked = true
			slog.ErrorContext(ctx, "panic", "component", "scheduler", "value", fmt.Sprint(r), "stack", string(debug.Stack()))
		}
	}()
	f()
	return false
}

// bind writes the placement of an assumed pod.
func (s *term) bind(ctx context.Context, q *queued, pod *corev1.Pod, node string) {
	began := time.Now()
	err := s.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err == nil {
		bound(q, pod.Spec.SchedulerName, began)
		s.events[pod.Spec.SchedulerName].Eventf(pod, nil, corev1.EventTypeNormal, "Scheduled", "Binding", "Successfully assigned %v/%v to %v", pod.Namespace, pod.Name, node)
		return
	}
	if ctx.Err() != nil {
		return
	}
	boundIn(pod.Spec.SchedulerName, framework.Error, time.Since(began), q.sampled)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bindFailed(ctx, q, node, fmt.Errorf("binding rejected: %w", err), apierrors.IsNotFound(err))
}

// refuse records in status and event why a pod has no node. A nil nominate leaves the
// nomination as it is.
func (s *term) refuse(ctx context.Context, pod *corev1.Pod, reason, message string, nominate *string) {
	s.events[pod.Spec.SchedulerName].Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", short(message, maxNote))
	status, changed := refusedStatus(pod, reason, message, time.Now())
	if nominate != nil && *nominate != pod.Status.NominatedNodeName {
		status["nominatedNodeName"], changed = *nominate, true
		if *nominate == "" {
			status["nominatedNodeName"] = nil
		}
	}
	if !changed {
		return
	}
	s.patchStatus(ctx, pod, status)
}

func (s *term) patchStatus(ctx context.Context, pod *corev1.Pod, status map[string]any) error {
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err == nil {
		_, err = s.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, raw, metav1.PatchOptions{}, "status")
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
		slog.WarnContext(ctx, "pod status", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
	return err
}

// refusedStatus is the patch that sets PodScheduled to False.
func refusedStatus(pod *corev1.Pod, reason, message string, now time.Time) (status map[string]any, changed bool) {
	c := map[string]any{
		"type": corev1.PodScheduled, "status": corev1.ConditionFalse, "reason": reason, "message": message,
		"lastProbeTime": nil, "lastTransitionTime": metav1.NewTime(now), "observedGeneration": pod.Generation,
	}
	for i := range pod.Status.Conditions {
		old := &pod.Status.Conditions[i]
		if old.Type != corev1.PodScheduled || old.Status != corev1.ConditionFalse {
			continue
		}
		if old.Reason == reason && old.Message == message {
			return map[string]any{}, false
		}
		c["lastTransitionTime"] = old.LastTransitionTime
	}
	return map[string]any{"conditions": []any{c}}, true
}

// Bytes that an event's note may have, and that the message of a pod's condition
// has: the API takes more, which every watch of the pod would then carry.
const (
	maxNote    = 1024
	maxMessage = 32 << 10
)

// short fits a message into so many bytes.
func short(s string, most int) string {
	const end = " ..."
	if len(s) <= most {
		return s
	}
	return s[:most-len(end)] + end
}
