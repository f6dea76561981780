package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/run"
	"knarr/node/kubelet/cgroup"
	"knarr/node/kubelet/objects"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/prober"
	"knarr/node/kubelet/runtimestate"
	"knarr/node/kubelet/tracing"
	"knarr/node/kubelet/volume"
)

// An ending is why a pod that runs, or would, has to end.
type ending struct {
	reason, message string
	// grace overrides the pod's own, seconds.
	grace *int64
	// rejected at admission: it never ran.
	rejected bool
	// disruption is the reason of a DisruptionTarget condition, if any.
	disruption string
	// why is the condition's message; "": that of the pod.
	why string
	// began is when the kubelet asked for it, with that grace.
	began time.Time
	// overdue says that events told of how long it takes.
	overdue bool
}

// A worker is the state machine of one pod. One goroutine owns everything but
// inbox; what takes long runs in operations of their own, which wake it when done.
type worker struct {
	k   *Kubelet
	uid types.UID

	// inbox is what others leave for the worker.
	inbox struct {
		sync.Mutex
		pod    *corev1.Pod
		mirror *corev1.Pod // the API's copy of a static pod
		gone   bool
		end    *ending
		images []string // that came while the pod waits for them
	}
	wake  chan struct{}
	stale atomic.Bool // the runtime may hold something new
	dirty atomic.Bool // contents of volumes may have changed
	shown atomic.Pointer[shown]
	// evicted is the grace, seconds, with which it was to end because the node is short of
	// something; nil: it was not.
	evicted atomic.Pointer[int64]
	// over opens when the pod has ended, its volumes too.
	over *gate
	// room opens when the pod has room that others had; nil: it had it from the start.
	room *gate

	desired  *corev1.Pod // as its maker wants it
	pod      *corev1.Pod // the same with the resources it was given
	base     *corev1.Pod // newest object the API server gave, for patches
	ops      map[opKey]*op
	done     chan *op
	reader   *runtimestate.Reader
	observed *runtimestate.Pod
	ips      []string // the pod's addresses as they are shown, which may be those it had
	ended    *ending
	last     *corev1.PodStatus
	sandbox  *cri.PodSandboxConfig

	cgroup    bool
	limits    cgroup.Limits // of the pod's group, as they were written last
	equipped  bool          // the containers have their devices
	volumes   map[string]volume.Mounted
	volumeErr error
	refresh   time.Time

	containers map[string]*containerState // by name
	instances  map[string]*instanceState  // by id
	retries    map[opKey]*retry
	awaited    []string             // images the pod waits for
	lastEvents map[string]pastEvent // the last of events that repeat, by what they are about
	// secretsEvent is when the last event said that secrets to pull with are not there.
	secretsEvent time.Time

	cleaned bool
	// cleanFailure is why it could not be cleaned up, as it was logged.
	cleanFailure string
	reported     bool
	differs      time.Time // since when what is shown is not what is
	final        bool      // the API server has the status of all containers ended
	deleted      bool
	removed      bool
	startedAt    time.Time
	timed        bool // how long it took to run was observed, or cannot be
	pulls        pullTimes
	seen         atomic.Bool // how long it took until the API showed that it runs was observed, or cannot be
	usersFailed  string      // the sandbox whose first start with users of its own failed, as was counted

	resizePending  *corev1.PodCondition        // why the pod was not given what it asks for
	resizing       *corev1.PodCondition        // that its containers do not have yet what it was given, and what went wrong
	resizeDeferred atomic.Pointer[resizeClaim] // waits for room
	roomMade       atomic.Bool                 // another pod has gone since that was looked at
	infeasible     int64                       // the generation whose resize was counted as such
}

// shown is what others may see of a worker.
type shown struct {
	pod      *corev1.Pod
	status   *corev1.PodStatus
	observed *runtimestate.Pod
	volumes  map[string]volume.Mounted
	ended    bool
	stage    string // one of stages; "" if the pod was rejected
}

func newWorker(k *Kubelet, pod *corev1.Pod) *worker {
	w := &worker{
		k: k, uid: pod.UID, wake: make(chan struct{}, 1), done: make(chan *op, 64),
		ops: map[opKey]*op{}, reader: runtimestate.NewReader(k.runtime),
		containers: map[string]*containerState{}, instances: map[string]*instanceState{},
		retries: map[opKey]*retry{}, lastEvents: map[string]pastEvent{},
		over: newGate(), startedAt: time.Now(), timed: pod.Status.StartTime != nil,
	}
	w.stale.Store(true)
	w.seen.Store(w.timed || isStatic(pod))
	w.inbox.pod = pod
	w.shown.Store(&shown{pod: k.allocations.Allocated(pod), status: &pod.Status, observed: &runtimestate.Pod{}, stage: stages[0]})
	return w
}

func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// set gives the worker a newer version of its pod.
func (w *worker) set(pod *corev1.Pod) {
	w.inbox.Lock()
	w.inbox.pod = pod
	w.inbox.Unlock()
	w.poke()
}

// finish tells the worker that its pod is no longer in the API.
func (w *worker) finish() {
	w.inbox.Lock()
	w.inbox.gone = true
	w.inbox.Unlock()
	w.poke()
}

// isGone says whether the pod is no longer in the API.
func (w *worker) isGone() bool {
	w.inbox.Lock()
	defer w.inbox.Unlock()
	return w.inbox.gone
}

// reject ends the pod before it begins. From now on its requests do not count
// against the node: otherwise each rejection of a burst would cause the next.
func (w *worker) reject(e *ending) {
	w.inbox.end = e
	before := w.shown.Load()
	status := before.status.DeepCopy()
	status.Phase = corev1.PodFailed
	w.shown.Store(&shown{pod: before.pod, status: status, observed: before.observed})
}

// end asks the worker to end its pod, and says whether it was the first to. One that ends
// already keeps why, and ends sooner if it is to.
func (w *worker) end(e *ending) (first bool) {
	w.inbox.Lock()
	before := w.inbox.end
	switch {
	case before == nil:
		w.inbox.end = e
	case e.grace != nil && (before.grace == nil || *e.grace < *before.grace):
		sooner := *before // which the worker may be reading
		sooner.grace = e.grace
		w.inbox.end = &sooner
	}
	w.inbox.Unlock()
	w.poke()
	return before == nil
}

func (w *worker) touch() { w.stale.Store(true); w.poke() }

// run is the worker's loop.
func (w *worker) run(ctx context.Context) {
	defer func() {
		for _, o := range w.ops {
			o.cancel()
		}
		for len(w.ops) > 0 {
			o := <-w.done
			delete(w.ops, o.key)
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		case o := <-w.done:
			w.collect(o)
		}
		for more := true; more; {
			select {
			case o := <-w.done:
				w.collect(o)
			default:
				more = false
			}
		}
		if w.removed && len(w.ops) == 0 {
			return
		}
		again := w.guarded(ctx)
		timer.Reset(again)
	}
}

func (w *worker) guarded(ctx context.Context) (again time.Duration) {
	defer func() {
		if p := recover(); p != nil {
			w.logPanic(p, string(debug.Stack()))
			again = 10 * time.Second
		}
	}()
	began, kind := time.Now(), "sync"
	if w.last == nil {
		w.k.metrics.workerStart.Observe(began.Sub(w.startedAt).Seconds())
		kind = "create"
	}
	ctx, span := w.k.tracer.Start(ctx, tracing.OfKubelet, spanNames[stages[0]], tracing.Internal)
	defer span.End()
	again = w.sync(ctx)
	w.describe(span, kind)
	if kind == "create" && w.ended == nil {
		w.k.metrics.containersPerPod.Observe(float64(len(w.pod.Spec.Containers)))
	}
	w.k.metrics.workerTook.WithLabelValues(kind).Observe(time.Since(began).Seconds())
	return again
}

// logPanic counts a panic, and logs where it was, of this pod once in a while: it comes again
// with each look at the pod.
func (w *worker) logPanic(p any, stack string) {
	run.CountPanic("kubelet: pod worker")
	if w.k.news.IsNew("panic of "+string(w.uid), fmt.Sprint(p)) {
		slog.Error("pod worker panicked", "pod", w.uid, "panic", p, "stack", stack)
	}
}

const never = time.Hour

// sync looks at everything and does what is to be done. It does not wait.
func (w *worker) sync(ctx context.Context) time.Duration {
	w.inbox.Lock()
	pod, mirror, gone, end := w.inbox.pod, w.inbox.mirror, w.inbox.gone, w.inbox.end
	images := w.inbox.images
	w.inbox.images = nil
	w.inbox.Unlock()
	if old := w.desired; pod != old {
		if old == nil || old.Generation != pod.Generation || !maps.Equal(old.Annotations, pod.Annotations) || !maps.Equal(old.Labels, pod.Labels) {
			w.dirty.Store(true)
		}
		if old != nil && old.Generation != pod.Generation {
			w.k.metrics.resizes.requested(old, pod)
		}
		w.watched(pod)
		w.desired, w.pod = pod, w.k.allocations.Allocated(pod)
		w.k.objects.Use(w.uid, objects.Of(pod))
	} else if w.k.objects.Short(w.uid) {
		w.k.objects.Use(w.uid, objects.Of(pod))
	}
	if api := w.apiPod(pod, mirror); api != nil && (w.base == nil || w.base.UID != api.UID || newer(api, w.base)) {
		if w.base == nil && w.last != nil && isStatic(pod) && api.Status.StartTime != nil {
			w.last = api.Status.DeepCopy() // a static pod begins before the API says what was
		}
		w.base = api
	} else if api == nil {
		w.base = nil
	}
	if w.last == nil {
		s := pod.Status.DeepCopy()
		if mirror != nil && isStatic(pod) {
			s = mirror.Status.DeepCopy()
		}
		w.last = s
	}
	if w.stale.Swap(false) {
		began := time.Now()
		v, err := w.reader.Read(ctx, w.uid)
		w.k.metrics.relistTook.Observe(time.Since(began).Seconds())
		w.k.metrics.relistPod.Observe(time.Since(began).Seconds())
		if err != nil {
			if ctx.Err() == nil {
				w.noteUnread(err)
			}
			w.stale.Store(true)
			return time.Second
		}
		w.observed, w.ips = v, shownIPs(v, w.ips)
		w.noteReplaced()
		w.readMessages()
	}
	if w.ended == nil {
		w.ended = w.mustEnd(pod, gone, end)
	} else {
		w.hasten(end)
	}
	w.retryImages(images)
	again := never
	if w.ended != nil {
		again = w.stop(ctx, gone)
	} else if w.room == nil || w.room.isOpen() { // which wakes the worker
		again = w.live(ctx)
	}
	w.awaitImages()
	w.watchProbes(w.pod)
	again = min(again, w.report(ctx, gone))
	return max(again, time.Millisecond)
}

// noteUnread logs why a pod could not be read, once for all pods, and has it among the pod's
// events: nothing starts or ends it meanwhile. A runtime that is down is noted as such.
func (w *worker) noteUnread(err error) {
	if !w.k.runtimeUp.Load() {
		return
	}
	w.eventOnce("read", corev1.EventTypeWarning, "FailedSync", "error determining status: "+err.Error())
	if w.k.news.IsNew("read pod", err.Error()) {
		slog.Warn("read pod from runtime", "pod", podspec.Format(w.pod), "err", err)
	}
}

// warn logs what fails again and again, in the same words once in a while: of each pod, or of
// all together where it is the API server or the runtime that does not answer. Such an hour
// has 110 pods try every ten seconds.
func (w *worker) warn(what string, err error, args ...any) {
	about, text := fmt.Sprint(what, w.uid, args), err.Error()
	var unanswered *url.Error // its own words name the pod
	switch code := status.Code(err); {
	case errors.As(err, &unanswered):
		about, text = what, unanswered.Err.Error()
	case code == codes.Unavailable || code == codes.DeadlineExceeded:
		about, text = what, status.Convert(err).Message()
	}
	if w.k.news.IsNew(about, text) {
		slog.Warn(what, slices.Concat([]any{"pod", podspec.Format(w.pod)}, args, []any{"err", err})...)
	}
}

func (w *worker) apiPod(pod, mirror *corev1.Pod) *corev1.Pod {
	if isStatic(pod) {
		return mirror
	}
	return pod
}

func newer(a, b *corev1.Pod) bool {
	x, err1 := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, err2 := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return err1 != nil || err2 != nil || x >= y
}

func isStatic(pod *corev1.Pod) bool { return podspec.IsStatic(pod) }

// mustEnd says why the pod has to end, if it has to.
func (w *worker) mustEnd(pod *corev1.Pod, gone bool, end *ending) *ending {
	now := time.Now()
	switch {
	case end != nil:
		e := *end
		e.began = now
		return &e
	case gone, pod.DeletionTimestamp != nil:
		return &ending{began: now}
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return &ending{began: now}
	}
	if d := w.deadline(pod); d != nil && *d <= 0 {
		w.k.events.Event(pod, corev1.EventTypeNormal, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
		return &ending{reason: "DeadlineExceeded", message: "Pod was active on the node longer than the specified deadline", began: now}
	}
	return nil
}

// deadline is how long the pod may still be active, nil for ever.
func (w *worker) deadline(pod *corev1.Pod) *time.Duration {
	if pod.Spec.ActiveDeadlineSeconds == nil {
		return nil
	}
	from := w.startedAt
	if w.last.StartTime != nil {
		from = w.last.StartTime.Time
	}
	d := time.Until(from.Add(time.Duration(*pod.Spec.ActiveDeadlineSeconds) * time.Second))
	return &d
}

func (w *worker) eventRef() *corev1.ObjectReference { return podReference(w.pod) }

// watchProbes probes what runs and forgets what does not.
func (w *worker) watchProbes(pod *corev1.Pod) {
	ip := ""
	if ips := w.podIPs(); len(ips) > 0 {
		ip = ips[0]
	} else if pod.Spec.HostNetwork && len(w.k.cfg.NodeIPs) > 0 {
		ip = w.k.cfg.NodeIPs[0].String()
	}
	was := &pod.Status
	if isStatic(pod) && w.base != nil {
		was = &w.base.Status // its manifest says nothing
	}
	for _, c := range w.observed.Containers {
		spec, kind := podspec.FindContainer(pod, c.Name())
		if spec == nil || kind == podspec.EphemeralContainer || kind == podspec.InitContainer && !podspec.IsSidecar(spec) {
			continue
		}
		if !c.Running() {
			w.k.prober.Forget(c.Id)
			continue
		}
		t := prober.Target{Pod: pod, Container: spec, ContainerID: c.Id, Started: c.Started(), PodIP: ip}
		id := w.k.runtimeName() + "://" + c.Id
		for _, s := range slices.Concat(was.ContainerStatuses, was.InitContainerStatuses) {
			if s.Name == spec.Name && s.ContainerID == id {
				// Before this kubelet started: what was true stays until probed.
				t.WasReady, t.WasStarted = s.Ready, s.Started != nil && *s.Started
			}
		}
		w.k.prober.Watch(t)
		if w.ended != nil {
			w.k.prober.StopLiveness(c.Id)
		}
	}
}
