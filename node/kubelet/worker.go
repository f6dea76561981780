package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/objects"
	"knarr/node/kubelet/prober"
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
	began      time.Time
}

// A worker is the state machine of one pod. One goroutine owns everything but
// inbox; what takes long runs in operations beside it and wakes it when done.
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
	}
	wake  chan struct{}
	stale atomic.Bool // the runtime may hold something new
	dirty atomic.Bool // contents of volumes may have changed
	shown atomic.Pointer[shown]

	pod     *corev1.Pod
	base    *corev1.Pod // newest object the API server gave, for patches
	ops     map[string]*op
	done    chan *op
	viewer  *viewer
	view    *view
	ended   *ending
	last    *corev1.PodStatus
	sandbox *cri.PodSandboxConfig

	cgroup    bool
	volumes   map[string]volume.Mounted
	volumeErr error
	refresh   time.Time

	images    map[string]*cri.Image
	waits     map[string]waitError
	retry     map[string]time.Time
	retries   map[string]*delay
	crash     map[string]*delay
	told      map[string]string
	messages  map[string]string
	killed    map[string]int64 // grace by container id
	turns     map[string]chan struct{}
	replaced  map[string]string // id of the one whose definition changed, by container name
	resized   map[string]*cri.LinuxContainerResources
	cleaned   bool
	reported  bool
	final     bool // the API server has the status of all containers ended
	deleted   bool
	removed   bool
	startedAt time.Time

	resizeCondition *corev1.PodCondition
}

// shown is what others may see of a worker.
type shown struct {
	pod    *corev1.Pod
	status *corev1.PodStatus
	view   *view
	ended  bool
}

// An op is something that takes long, done beside the worker.
type op struct {
	key    string
	cancel context.CancelFunc
	apply  func() // runs in the worker
}

func newWorker(k *Kubelet, pod *corev1.Pod) *worker {
	w := &worker{
		k: k, uid: pod.UID, wake: make(chan struct{}, 1), done: make(chan *op, 64),
		ops: map[string]*op{}, viewer: newViewer(k.runtime),
		images: map[string]*cri.Image{}, waits: map[string]waitError{}, retry: map[string]time.Time{},
		retries: map[string]*delay{}, crash: map[string]*delay{}, told: map[string]string{},
		messages: map[string]string{}, killed: map[string]int64{}, turns: map[string]chan struct{}{},
		replaced: map[string]string{}, resized: map[string]*cri.LinuxContainerResources{},
		startedAt: time.Now(),
	}
	w.stale.Store(true)
	w.inbox.pod = pod
	w.shown.Store(&shown{pod: pod, status: &pod.Status, view: &view{}})
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

// reject ends the pod before it begins. From now on it takes no room, lest in a
// burst each rejection be the reason for the next.
func (w *worker) reject(e *ending) {
	w.inbox.end = e
	before := w.shown.Load()
	status := before.status.DeepCopy()
	status.Phase = corev1.PodFailed
	w.shown.Store(&shown{pod: before.pod, status: status, view: before.view})
}

// end asks the worker to end its pod.
func (w *worker) end(e *ending) {
	w.inbox.Lock()
	if w.inbox.end == nil {
		w.inbox.end = e
	}
	w.inbox.Unlock()
	w.poke()
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

func (w *worker) collect(o *op) {
	delete(w.ops, o.key)
	if o.apply != nil {
		o.apply() // sees whether the operation was called off
	}
	o.cancel()
}

func (w *worker) guarded(ctx context.Context) (again time.Duration) {
	defer func() {
		if p := recover(); p != nil {
			slog.Error("pod worker panicked", "pod", w.uid, "panic", p, "stack", string(debug.Stack()))
			again = 10 * time.Second
		}
	}()
	return w.sync(ctx)
}

// begin runs f beside the worker, once per key at a time. What f returns runs
// in the worker afterwards.
func (w *worker) begin(ctx context.Context, key string, f func(context.Context) func()) bool {
	if _, busy := w.ops[key]; busy {
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	o := &op{key: key, cancel: cancel}
	w.ops[key] = o
	begun := time.Now()
	w.k.wg.Go(func() {
		defer func() {
			slog.Debug("pod operation", "pod", w.uid, "op", key, "took", time.Since(begun))
			if p := recover(); p != nil {
				slog.Error("pod operation panicked", "pod", w.uid, "op", key, "panic", p, "stack", string(debug.Stack()))
			}
			w.done <- o
		}()
		o.apply = f(ctx)
	})
	return true
}

func (w *worker) busy(prefix string) bool {
	for key := range w.ops {
		if len(key) >= len(prefix) && key[:len(prefix)] == prefix {
			return true
		}
	}
	return false
}

const never = time.Hour

// sync looks at everything and does what is to be done. It does not wait.
func (w *worker) sync(ctx context.Context) time.Duration {
	w.inbox.Lock()
	pod, mirror, gone, end := w.inbox.pod, w.inbox.mirror, w.inbox.gone, w.inbox.end
	w.inbox.Unlock()
	if pod != w.pod {
		if w.pod == nil || w.pod.Generation != pod.Generation || !maps.Equal(w.pod.Annotations, pod.Annotations) || !maps.Equal(w.pod.Labels, pod.Labels) {
			w.dirty.Store(true)
		}
		w.pod = pod
		w.k.objects.Use(w.uid, objects.Of(pod))
	}
	if api := w.apiPod(pod, mirror); api != nil && (w.base == nil || w.base.UID != api.UID || newer(api, w.base)) {
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
		v, err := w.viewer.read(ctx, w.uid)
		if err != nil {
			if ctx.Err() == nil {
				slog.Warn("read pod from runtime", "pod", podRef(pod), "err", err)
			}
			w.stale.Store(true)
			return time.Second
		}
		w.view = v
		w.hear()
	}
	if w.ended == nil {
		w.ended = w.mustEnd(pod, gone, end)
	}
	again := never
	if w.ended != nil {
		again = w.stop(ctx, gone)
	} else {
		again = w.live(ctx)
	}
	w.watchProbes(pod)
	again = min(again, w.report(ctx, gone))
	return max(again, time.Millisecond)
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

func isStatic(pod *corev1.Pod) bool {
	src, ok := pod.Annotations[annConfigSource]
	return ok && src != "api"
}

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

// live brings a pod that should run closer to running.
func (w *worker) live(ctx context.Context) time.Duration {
	pod := w.pod
	again := never
	if d := w.deadline(pod); d != nil {
		again = min(again, *d)
	}
	a := plan(pod, w.view, w.k)
	if a.finish {
		if len(w.view.running()) == 0 || !anySpecRunning(pod, w.view) {
			w.ended = &ending{began: time.Now()}
			w.poke()
			return again
		}
	}
	if a.replace && len(w.view.sandboxes) > 0 && !w.busy("sandbox") {
		// Everything of the old sandbox stops before a new one is made.
		for _, c := range w.view.running() {
			w.kill(ctx, c, "", nil)
		}
		if len(w.view.running()) > 0 {
			return again
		}
		for _, s := range w.view.sandboxes {
			if s.ready() {
				w.stopSandbox(ctx, s.Id)
			}
		}
		if w.busy("stopsandbox") {
			return again
		}
	}
	for _, kl := range a.kill {
		if c := w.view.byID(kl.id); c != nil {
			if spec, _ := findContainer(pod, kl.name); spec != nil && changed(spec, c) {
				w.replaced[kl.name] = kl.id
			}
			w.kill(ctx, c, kl.message, probeGrace(pod, kl))
		}
	}
	if !w.k.network.Load() && !pod.Spec.HostNetwork && a.replace {
		w.tell("network", corev1.EventTypeWarning, "NetworkNotReady", "network is not ready: "+w.k.networkMessage())
		return min(again, 5*time.Second)
	}
	if err := w.ensureCgroup(); err != nil {
		w.tell("cgroup", corev1.EventTypeWarning, "FailedCreatePodContainer", "unable to ensure pod container exists: "+err.Error())
		return min(again, 5*time.Second)
	}
	if w.dirty.Load() {
		// What containers lack may have come.
		for name, wait := range w.waits {
			if wait.reason == "CreateContainerConfigError" {
				delete(w.retry, name)
			}
		}
	}
	again = min(again, w.ensureVolumes(ctx))
	if a.replace {
		again = min(again, w.ensureSandbox(ctx, a.attempt))
	}
	again = min(again, w.startContainers(ctx, a))
	w.trim(ctx)
	w.resize(ctx)
	return again
}

// anySpecRunning says whether a container other than a sidecar runs.
func anySpecRunning(pod *corev1.Pod, v *view) bool {
	for i := range pod.Spec.Containers {
		if c := v.latest(pod.Spec.Containers[i].Name); c != nil && c.running() {
			return true
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := v.latest(pod.Spec.InitContainers[i].Name); c != nil && c.running() && !isSidecar(&pod.Spec.InitContainers[i]) {
			return true
		}
	}
	return false
}

func (w *worker) ensureCgroup() error {
	if w.cgroup {
		return nil
	}
	if err := w.k.ensurePodCgroup(w.pod); err != nil {
		return err
	}
	w.cgroup = true
	return nil
}

// ensureVolumes mounts the volumes and keeps their contents up to date.
func (w *worker) ensureVolumes(ctx context.Context) time.Duration {
	due := w.volumes == nil || w.dirty.Load() || !w.refresh.IsZero() && !time.Now().Before(w.refresh)
	if t, ok := w.retry["volumes"]; ok && time.Now().Before(t) && !w.dirty.Load() {
		return time.Until(t)
	}
	if due && !w.busy("volumes") {
		w.dirty.Store(false)
		pod, ips := w.pod, w.podIPs()
		w.begin(ctx, "volumes", func(ctx context.Context) func() {
			dir := w.k.volumes.PodDir(string(pod.UID))
			err := makePodDirs(dir)
			var out map[string]volume.Mounted
			var next time.Time
			if err == nil {
				out, next, err = w.k.volumes.Mount(ctx, pod, w.k.downward(pod, ips))
			}
			return func() { w.mounted(pod, out, next, err) }
		})
	}
	if w.refresh.IsZero() {
		return never
	}
	return time.Until(w.refresh)
}

func (w *worker) mounted(pod *corev1.Pod, out map[string]volume.Mounted, next time.Time, err error) {
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return
		}
		w.volumeErr = err
		w.again("volumes", 500*time.Millisecond, 2*time.Minute)
		for _, e := range flatten(err) {
			w.tell("volume "+e.Error(), corev1.EventTypeWarning, "FailedMount", e.Error())
		}
		return
	}
	w.volumes, w.refresh, w.volumeErr = out, next, nil
	delete(w.retry, "volumes")
	delete(w.retries, "volumes")
}

// flatten takes joined errors apart.
func flatten(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return []error{err}
}

// again sets when something that failed is tried again.
func (w *worker) again(what string, first, most time.Duration) {
	d := w.retries[what]
	if d == nil {
		d = &delay{first: first, most: most}
		w.retries[what] = d
	}
	w.retry[what] = time.Now().Add(d.next(time.Now()))
}

// tell emits an event about the pod unless the last one about key said the same
// within the last minutes.
func (w *worker) tell(key, kind, reason, message string) {
	if w.told[key] == message {
		return
	}
	if len(w.told) > 64 {
		clear(w.told)
	}
	w.told[key] = message
	w.k.events.Event(w.eventRef(), kind, reason, message)
}

func (w *worker) ensureSandbox(ctx context.Context, attempt uint32) time.Duration {
	if t, ok := w.retry["sandbox"]; ok && time.Now().Before(t) {
		return time.Until(t)
	}
	pod := w.pod
	replaced := len(w.view.sandboxes) > 0
	begun := w.begin(ctx, "sandbox", func(ctx context.Context) func() {
		cfg, err := w.k.sandboxConfig(pod, attempt)
		if err == nil {
			err = w.k.makeLogDir(cfg.LogDirectory)
		}
		handler := ""
		if err == nil {
			handler, err = w.k.handler(ctx, pod)
		}
		if err == nil {
			starting, cancel := whole(ctx)
			_, err = w.k.runtime.RunPodSandbox(starting, &cri.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
			cancel()
		}
		return func() {
			w.stale.Store(true)
			if err != nil {
				if ctx.Err() != nil {
					return
				}
				w.again("sandbox", time.Second, 10*time.Second)
				w.k.events.Event(w.eventRef(), corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
				return
			}
			w.sandbox = cfg
			delete(w.retry, "sandbox")
			delete(w.retries, "sandbox")
		}
	})
	if begun && replaced {
		w.k.events.Event(w.eventRef(), corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	return never
}

func (w *worker) stopSandbox(ctx context.Context, id string) {
	w.begin(ctx, "stopsandbox:"+id, func(ctx context.Context) func() {
		_, err := w.k.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		return func() {
			w.stale.Store(true)
			if err != nil && ctx.Err() == nil {
				w.tell("kill", corev1.EventTypeWarning, "FailedKillPod", "error killing pod: "+err.Error())
			}
		}
	})
}

// podIPs are the pod's addresses, the node's family first.
func (w *worker) podIPs() []string {
	if w.view == nil {
		return nil
	}
	for _, s := range w.view.sandboxes {
		if s.ready() {
			return w.k.sortIPs(s.ips())
		}
	}
	return nil
}

// hear reads the last words of containers seen exited for the first time.
func (w *worker) hear() {
	for _, c := range w.view.containers {
		if _, known := w.messages[c.Id]; c.exited() && !known {
			if m, ok := lastWords(c); ok {
				w.messages[c.Id] = m
			}
		}
	}
	for id := range w.messages {
		if w.view.byID(id) == nil {
			delete(w.messages, id)
		}
	}
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
	for _, c := range w.view.containers {
		spec, kind := findContainer(pod, c.name())
		if spec == nil || kind == ephemeralKind || kind == initKind && !isSidecar(spec) {
			continue
		}
		if !c.running() {
			w.k.prober.Forget(c.Id)
			continue
		}
		t := prober.Target{Pod: pod, Container: spec, ContainerID: c.Id, Started: c.started(), PodIP: ip}
		id := w.k.runtimeName() + "://" + c.Id
		for _, s := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
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

// replacing says whether a container whose definition changed is on its way
// out, or the next one on its way in.
func (w *worker) replacing() bool {
	maps.DeleteFunc(w.replaced, func(name, id string) bool {
		c := w.view.latest(name)
		return w.waits[name].reason != "" || c == nil || c.Id != id && (c.running() || c.exited())
	})
	return len(w.replaced) > 0
}

// report writes the status to the API server if it is not as it should be.
func (w *worker) report(ctx context.Context, gone bool) time.Duration {
	pod := w.pod
	if w.ended == nil && w.replacing() {
		return never // one step for those who watch: the old, then the new
	}
	s := podStatus(w.statusInput())
	w.last = &s
	w.shown.Store(&shown{pod: pod, status: &s, view: w.view, ended: w.ended != nil && w.cleaned})
	if w.base == nil || gone || w.deleted {
		return never
	}
	if t, ok := w.retry["status"]; ok && time.Now().Before(t) {
		return time.Until(t)
	}
	terminal := w.statusTerminal()
	if w.final && pod.DeletionTimestamp != nil {
		return never // what is left to say nobody can read any more
	}
	if sameStatus(&w.base.Status, &s) {
		w.reported, w.final = true, terminal
		return never
	}
	w.reported = false
	base := w.base
	w.begin(ctx, "status", func(ctx context.Context) func() {
		got, err := w.k.patchStatus(ctx, base, &s)
		return func() {
			switch {
			case err == nil:
				w.final = terminal
				delete(w.retry, "status")
				delete(w.retries, "status")
				if newer(got, w.base) {
					w.base = got
				}
			case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
				w.again("status", time.Second, 10*time.Second)
			case ctx.Err() == nil:
				slog.Warn("patch pod status", "pod", podRef(pod), "err", err)
				w.again("status", 200*time.Millisecond, 10*time.Second)
			}
		}
	})
	return never
}

// statusTerminal says whether nothing of the pod runs or will run any more.
func (w *worker) statusTerminal() bool {
	return w.ended != nil && len(w.view.running()) == 0 && !w.busy("start") && !w.busy("sandbox")
}

func (w *worker) statusInput() statusInput {
	in := statusInput{
		pod: w.pod, old: w.last, view: w.view, waits: w.waits, messages: w.messages,
		terminal: w.statusTerminal(),
		ended:    w.ended, runtime: w.k.runtimeName(), podIPs: w.podIPs(), now: time.Now(),
		started: w.k.started, ready: w.k.ready, resize: w.resizeCondition,
	}
	if w.base != nil && w.base.Status.Conditions != nil {
		p := *w.pod
		p.Status.Conditions = w.base.Status.Conditions
		in.pod = &p
	}
	for _, ip := range w.k.cfg.NodeIPs {
		in.hostIPs = append(in.hostIPs, ip.String())
	}
	if w.ended != nil && len(in.podIPs) == 0 {
		for _, ip := range w.last.PodIPs { // where it was stays known
			in.podIPs = append(in.podIPs, ip.IP)
		}
	}
	return in
}
