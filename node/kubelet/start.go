package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/runtimestate"
	"knarr/node/kubelet/volume"
)

const (
	crashFirst = 10 * time.Second
	// crashForgotten is how long a container must have run for its next start not to wait,
	// upstream's, whatever the most that one waits.
	crashForgotten = 10 * time.Minute
)

// startContainers starts the next container of the plan that may be started.
// Containers start one after another, in order, as their order can matter;
// their images are fetched at once.
func (w *worker) startContainers(ctx context.Context, a actions) time.Duration {
	again := never
	sb, ready := w.observed.ReadySandbox()
	ready = ready && !a.replace && !w.busy(opKey{kind: opSandbox})
	if len(a.start) == 0 {
		return again
	}
	held := w.anyBusy(opStart)
	for _, c := range a.start {
		start := opKey{kind: opStart, of: c.Name}
		if w.busy(start) {
			continue
		}
		s := w.observed.Latest(c.Name)
		if s != nil && s.Running() {
			continue // it is being killed first
		}
		if left := w.crashLeft(c.Name, s); left > 0 {
			again = min(again, left)
			continue
		}
		if left := w.retryIn(start); left > 0 {
			again = min(again, left)
			continue
		}
		if left := w.k.pullBackoff(w.pod, c.Image); left > 0 && w.container(c.Name).image == nil {
			w.waitPull(c)
			again = min(again, left)
			continue
		}
		w.fetch(ctx, c)
		if held || !ready || w.volumes == nil {
			continue
		}
		if w.container(c.Name).image == nil {
			if w.busy(opKey{kind: opPull, of: c.Name}) {
				held = true // those after it wait for their turn
			}
			continue
		}
		w.startOne(ctx, c, sb, s)
		held = true
	}
	return again
}

// crashLeft is how long a container that ended has to wait for its restart.
func (w *worker) crashLeft(name string, s *runtimestate.Container) time.Duration {
	if s == nil || !s.Exited() || !runtimestate.InSandbox(s, w.observed) {
		return 0
	}
	state := w.crashing(name)
	d := state.crashes
	if d == nil || d.cur == 0 {
		return 0
	}
	left := time.Until(s.Finished().Add(d.cur))
	if exited := w.instance(s.Id).exited; !exited.IsZero() { // not longer if the clock was set back since
		left = min(left, time.Until(exited.Add(d.cur)))
	}
	if left <= 0 || d.forgotten(s.Finished()) {
		return 0
	}
	c, _ := podspec.FindContainer(w.pod, name)
	state.waiting = waitError{"CrashLoopBackOff", fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", d.cur, name, podspec.Format(w.pod))}
	if state.crashEvent != s.Id {
		state.crashEvent = s.Id
		w.k.events.Event(containerReference(w.pod, c), corev1.EventTypeWarning, "BackOff",
			fmt.Sprintf("Back-off restarting failed container %s in pod %s", name, podspec.Format(w.pod)))
	}
	return left
}

// crashing is the state of a container, which has not crashed yet with an image, or with
// resources, that the spec names now for the first time.
func (w *worker) crashing(name string) *containerState {
	state := w.container(name)
	if c, _ := podspec.FindContainer(w.pod, name); c != nil && (c.Image != state.crashImage || !equality.Semantic.DeepEqual(c.Resources, state.crashResources)) {
		state.crashImage, state.crashResources, state.crashes = c.Image, c.Resources, nil
	}
	return state
}

// crashed notes that a container has ended whose next start is under way.
func (w *worker) crashed(c *runtimestate.Container) {
	state := w.crashing(c.Name())
	if state.crashes == nil {
		state.crashes = w.k.crashDelay()
	}
	state.crashes.next(c.Finished())
	state.crashes.last = time.Now() // what counts is how long it runs from here
}

// waitPull shows the back-off of a pull without pulling, once it is known why the pull
// failed and the API has shown that: a status that was still on its way would be overtaken.
func (w *worker) waitPull(c *corev1.Container) {
	if w.busy(opKey{kind: opPull, of: c.Name}) {
		return
	}
	now := w.container(c.Name).waiting.reason
	if now == "ImagePullBackOff" || isImageWait(now) && w.base != nil && !shows(&w.base.Status, c.Name, now) {
		return
	}
	w.k.pulls.mu.Lock()
	f := w.k.pulls.fails[pullKey{w.pod.UID, c.Image}]
	w.k.pulls.mu.Unlock()
	if f == nil {
		return
	}
	msg := fmt.Sprintf("Back-off pulling image %q", c.Image)
	w.k.events.Event(containerReference(w.pod, c), corev1.EventTypeNormal, "BackOff", msg)
	w.k.events.Event(containerReference(w.pod, c), corev1.EventTypeWarning, "Failed", "Error: ImagePullBackOff")
	w.container(c.Name).waiting = waitError{"ImagePullBackOff", msg + ": " + f.message}
}

// shows says whether a status has the reason why a container waits.
func shows(s *corev1.PodStatus, container, reason string) bool {
	for _, all := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range all {
			if all[i].Name == container {
				return all[i].State.Waiting != nil && all[i].State.Waiting.Reason == reason
			}
		}
	}
	return false
}

// fetch makes the container's image present, in an operation.
func (w *worker) fetch(ctx context.Context, c *corev1.Container) {
	state := w.container(c.Name)
	if state.image != nil || w.busy(opKey{kind: opStart, of: c.Name}) {
		return
	}
	pod, sandbox := w.pod, w.sandbox
	w.begin(ctx, opKey{kind: opPull, of: c.Name}, func(ctx context.Context) func() {
		ref := containerReference(pod, c)
		img, err := w.k.ensureImage(ctx, pod, ref, c.Image, c.ImagePullPolicy, sandbox)
		return func() {
			if err == nil {
				state.image = img
				if isImageWait(state.waiting.reason) {
					state.waiting = waitError{}
				}
				return
			}
			w.failed(ctx, c, err)
		}
	})
}

func isImageWait(reason string) bool {
	switch reason {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
		"RegistryUnavailable", "SignatureValidationFailed":
		return true
	}
	return false
}

// failed remembers why a container could not be started.
func (w *worker) failed(ctx context.Context, c *corev1.Container, err error) {
	if ctx.Err() != nil {
		return
	}
	we := waitError{"RunContainerError", err.Error()}
	errors.As(err, &we)
	state := w.container(c.Name)
	state.waiting = we
	// As upstream's kubelet does: what never became a container is tried every ten to fifteen
	// seconds for as long as it fails, since the cause may end at any time; what ended as one
	// waits for its restart like any other, ever longer.
	key := opKey{kind: opStart, of: c.Name}
	w.retryLater(key, time.Second, 10*time.Second)
	w.spreadRetry(key)
	switch {
	case isImageWait(we.reason):
		w.k.events.Event(containerReference(w.pod, c), corev1.EventTypeWarning, "Failed", "Error: "+we.reason)
	case we.reason == "PostStartHookError":
	default: // each time: the event is counted, and stays for as long as this goes on
		w.k.events.Event(containerReference(w.pod, c), corev1.EventTypeWarning, "Failed", "Error: "+we.message)
	}
}

func (w *worker) startOne(ctx context.Context, c *corev1.Container, sb runtimestate.Sandbox, s *runtimestate.Container) {
	pod, state := w.pod, w.container(c.Name)
	in := criconfig.Inputs{
		Pod: pod, Spec: c, Image: state.image, IPs: w.podIPs(), Volumes: w.volumes,
	}
	state.image = nil // looked up anew at the next start
	if s != nil {
		in.Restarts = s.Restarts() + 1
	} else {
		for _, old := range [][]corev1.ContainerStatus{w.last.ContainerStatuses, w.last.InitContainerStatuses} {
			o := podstatus.FindContainer(old, c.Name)
			switch {
			case o == nil:
			case o.ContainerID != "":
				in.Restarts = int(o.RestartCount) + 1
			default: // the status counts this start already
				in.Restarts = int(o.RestartCount)
			}
		}
	}
	in.Attempt = uint32(in.Restarts)
	in.LogPath = filepath.Join(c.Name, strconv.Itoa(in.Restarts)+".log")
	if s != nil && s.Exited() {
		w.crashed(s)
	}
	target, notThere := w.targetOf(c.Name)
	in.Target = target
	sandboxConfig, attempt := w.sandbox, sb.Metadata.GetAttempt()
	key := opKey{kind: opStart, of: c.Name}
	w.begin(ctx, key, func(ctx context.Context) func() {
		err := notThere
		if err == nil && sandboxConfig == nil {
			sandboxConfig, _, err = w.k.sandboxConfig(ctx, pod, attempt)
		}
		if err == nil {
			err = w.k.runContainer(ctx, in, sb.Id, sandboxConfig, w.touch)
			w.k.metrics.started(pod, c.Name, err)
		}
		return func() {
			w.stale.Store(true)
			w.sandbox = sandboxConfig
			if err != nil {
				w.countUsersFailed(pod, sb.Id, in.Attempt)
				w.failed(ctx, c, err)
				return
			}
			state.waiting = waitError{}
			w.succeeded(key)
		}
	})
}

// targetOf is the container whose processes an ephemeral container wants to see, "" if it wants
// none: it would not see them later either, so that it is not started before.
func (w *worker) targetOf(name string) (id string, err error) {
	for i := range w.pod.Spec.EphemeralContainers {
		e := &w.pod.Spec.EphemeralContainers[i]
		if e.Name != name || e.TargetContainerName == "" {
			continue
		}
		t := w.observed.Latest(e.TargetContainerName)
		if t == nil {
			return "", waitError{"CreateContainerConfigError", fmt.Sprintf("unable to find target container %v", e.TargetContainerName)}
		}
		return t.Id, nil
	}
	return "", nil
}

// runContainer creates and starts one container and runs its postStart hook.
func (k *Kubelet) runContainer(ctx context.Context, in criconfig.Inputs, sandboxID string, sandbox *cri.PodSandboxConfig, running func()) error {
	pod, c := in.Pod, in.Spec
	ref := containerReference(pod, c)
	images, err := k.imageVolumes(ctx, pod, c, in.Volumes, sandbox)
	if err != nil {
		return err
	}
	in.ImageVolumes, in.Services, in.Allocatable = images, k.serviceList(), k.allocatable()
	in.RecursiveReadOnly, in.Objects, in.Files = k.recursiveReadOnly(pod), k.objects, k.podFiles()
	in.CPUs, in.MemoryNodes = k.cpus.For(pod.UID, c.Name), k.memory.Nodes(pod.UID, c.Name)
	in.Users = sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if in.Plugins, err = k.devices.Answers(ctx, pod, c); err != nil {
		return waitError{"CreateContainerConfigError", err.Error()}
	}
	cfg, err := criconfig.Container(ctx, k.nodeConfig(), in)
	if err != nil {
		return waitError{"CreateContainerConfigError", err.Error()}
	}
	if err := os.MkdirAll(filepath.Join(k.podLogDir(pod), c.Name), 0o755); err != nil {
		return waitError{"CreateContainerConfigError", err.Error()}
	}
	created, err := k.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandboxID, Config: cfg, SandboxConfig: sandbox})
	k.metrics.images.mounted(c, images, err)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return waitError{"CreateContainerError", status.Convert(err).Message()}
	}
	k.events.Event(ref, corev1.EventTypeNormal, "Created", "Container created")
	id := created.ContainerId
	if err := k.memory.Started(pod, c.Name); err != nil {
		slog.WarnContext(ctx, "keep which container has memory of which NUMA nodes", "err", err)
	}
	starting, cancel := startContext(ctx)
	_, err = k.runtime.StartContainer(starting, &cri.StartContainerRequest{ContainerId: id})
	cancel()
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return waitError{"RunContainerError", status.Convert(err).Message()}
	}
	k.events.Event(ref, corev1.EventTypeNormal, "Started", "Container started")
	k.linkLog(pod, c, id, filepath.Join(k.podLogDir(pod), in.LogPath))
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	running()
	if err := k.hook(ctx, pod, c, id, firstOf(in.IPs), c.Lifecycle.PostStart); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.events.Event(ref, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
		slog.WarnContext(ctx, "Failed to execute PostStartHook", "pod", podspec.Format(pod), "container", c.Name, "err", loggedHook(err))
		failed := &runtimestate.Container{ContainerStatus: &cri.ContainerStatus{Id: id}}
		_ = k.killContainer(ctx, pod, c, failed, "FailedPostStartHook", newStopTime(graceOf(pod, nil)), firstOf(in.IPs), nil)
		return waitError{"PostStartHookError", err.Error()}
	}
	return nil
}

// startTimeout bounds a call that starts a process.
const startTimeout = 4 * time.Minute

// startContext is a context for a call that starts a process: cancelled half-way, it
// could leave a process that the kubelet does not know. Such a process is ended
// afterwards.
func startContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
}

// imageVolumes makes the images present that are volumes of the container.
func (k *Kubelet) imageVolumes(ctx context.Context, pod *corev1.Pod, c *corev1.Container, volumes map[string]volume.Mounted, sandbox *cri.PodSandboxConfig) (map[string]string, error) {
	out := map[string]string{}
	for _, m := range c.VolumeMounts {
		v := volumes[m.Name].Image
		if v == nil || out[m.Name] != "" {
			continue
		}
		img, err := k.ensureImage(ctx, pod, containerReference(pod, c), v.Reference, v.PullPolicy, sandbox)
		if err != nil {
			return nil, err
		}
		out[m.Name] = img.Id
	}
	return out, nil
}

// linkLog gives log collectors the names they look for.
func (k *Kubelet) linkLog(pod *corev1.Pod, c *corev1.Container, id, path string) {
	if k.cfg.ContainerLogsDir == "" {
		return
	}
	_ = os.Symlink(path, k.logLink(pod.Name, pod.Namespace, c.Name, id))
}

func (k *Kubelet) logLink(pod, namespace, name, id string) string {
	base := pod + "_" + namespace + "_" + name
	if most := 255 - len(".log") - len(id) - 1; len(base) > most {
		base = base[:most]
	}
	return filepath.Join(k.cfg.ContainerLogsDir, base+"-"+id+".log")
}
