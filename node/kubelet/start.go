package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/volume"
)

const (
	crashFirst = 10 * time.Second
	crashMost  = 5 * time.Minute
)

// startContainers starts the next container of the plan that may be started.
// Containers start one after another, in order, as their order can matter;
// their images are fetched at once.
func (w *worker) startContainers(ctx context.Context, a actions) time.Duration {
	again := never
	sb, ready := w.view.readySandbox()
	ready = ready && !a.replace && !w.busy("sandbox")
	if len(a.start) == 0 {
		return again
	}
	held := w.busy("start")
	for _, c := range a.start {
		if held && w.ops["start:"+c.Name] != nil {
			continue
		}
		s := w.view.latest(c.Name)
		if s != nil && s.running() {
			continue // it is being killed first
		}
		if left := w.crashLeft(c.Name, s); left > 0 {
			again = min(again, left)
			continue
		}
		if t, ok := w.retry[c.Name]; ok && time.Now().Before(t) {
			again = min(again, time.Until(t))
			continue
		}
		if left := w.k.pullBackoff(w.pod, c.Image); left > 0 && w.images[c.Name] == nil {
			w.waitPull(c)
			again = min(again, left)
			continue
		}
		w.fetch(ctx, c)
		if held || !ready || w.volumes == nil {
			continue
		}
		if w.images[c.Name] == nil {
			if w.busy("pull:" + c.Name) {
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
func (w *worker) crashLeft(name string, s *container) time.Duration {
	if s == nil || !s.exited() || !inSandbox(s, w.view) {
		return 0
	}
	d := w.crash[name]
	if d == nil || d.cur == 0 {
		return 0
	}
	left := time.Until(s.finished().Add(d.cur))
	if left <= 0 || s.finished().Sub(d.last) > 2*d.most {
		return 0
	}
	c, _ := findContainer(w.pod, name)
	w.waits[name] = waitError{"CrashLoopBackOff", fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", d.cur, name, podRef(w.pod))}
	if key := "crash " + name; w.told[key] != s.Id {
		w.told[key] = s.Id
		w.k.events.Event(containerReference(w.pod, c), corev1.EventTypeWarning, "BackOff",
			fmt.Sprintf("Back-off restarting failed container %s in pod %s", name, podRef(w.pod)))
	}
	return left
}

// waitPull shows the back-off of a pull without pulling.
func (w *worker) waitPull(c *corev1.Container) {
	if w.waits[c.Name].reason == "ImagePullBackOff" {
		return
	}
	w.k.pulls.mu.Lock()
	f := w.k.pulls.fails[string(w.pod.UID)+"_"+c.Image]
	w.k.pulls.mu.Unlock()
	if f == nil {
		return
	}
	msg := fmt.Sprintf("Back-off pulling image %q", c.Image)
	w.k.events.Event(containerReference(w.pod, c), corev1.EventTypeNormal, "BackOff", msg)
	w.k.events.Event(containerReference(w.pod, c), corev1.EventTypeWarning, "Failed", "Error: ImagePullBackOff")
	w.waits[c.Name] = waitError{"ImagePullBackOff", msg + ": " + f.message}
}

// fetch makes the container's image present, beside.
func (w *worker) fetch(ctx context.Context, c *corev1.Container) {
	if w.images[c.Name] != nil || w.busy("start:"+c.Name) {
		return
	}
	pod, sandbox := w.pod, w.sandbox
	w.begin(ctx, "pull:"+c.Name, func(ctx context.Context) func() {
		ref := containerReference(pod, c)
		img, err := w.k.ensureImage(ctx, pod, ref, c.Image, c.ImagePullPolicy, sandbox)
		return func() {
			if err == nil {
				w.images[c.Name] = img
				if isImageWait(w.waits[c.Name].reason) {
					delete(w.waits, c.Name)
				}
				return
			}
			w.failed(ctx, c, err)
		}
	})
}

func isImageWait(reason string) bool {
	switch reason {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError":
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
	w.waits[c.Name] = we
	w.again(c.Name, time.Second, 10*time.Second)
	switch {
	case isImageWait(we.reason):
		w.k.events.Event(containerReference(w.pod, c), corev1.EventTypeWarning, "Failed", "Error: "+we.reason)
	case we.reason == "PostStartHookError":
	default:
		key := "failed " + c.Name
		if w.told[key] != we.message {
			w.told[key] = we.message
			w.k.events.Event(containerReference(w.pod, c), corev1.EventTypeWarning, "Failed", "Error: "+we.message)
		}
	}
}

func (w *worker) startOne(ctx context.Context, c *corev1.Container, sb sandbox, s *container) {
	pod := w.pod
	in := containerInputs{
		pod: pod, spec: c, image: w.images[c.Name], ips: w.podIPs(), volumes: w.volumes,
	}
	delete(w.images, c.Name) // looked up anew at the next start
	if s != nil {
		in.restarts = s.restarts() + 1
	} else {
		for _, old := range [][]corev1.ContainerStatus{w.last.ContainerStatuses, w.last.InitContainerStatuses} {
			if o := named(old, c.Name); o != nil && o.ContainerID != "" {
				in.restarts = int(o.RestartCount) + 1
			}
		}
	}
	in.attempt = uint32(in.restarts)
	in.logPath = filepath.Join(c.Name, strconv.Itoa(in.restarts)+".log")
	if s != nil && s.exited() {
		d := w.crash[c.Name]
		if d == nil {
			d = &delay{first: crashFirst, most: crashMost}
			w.crash[c.Name] = d
		}
		d.next(s.finished())
	}
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == c.Name && e.TargetContainerName != "" {
			if t := w.view.latest(e.TargetContainerName); t != nil {
				in.target = t.Id
			}
		}
	}
	sandboxConfig, attempt := w.sandbox, sb.Metadata.GetAttempt()
	w.begin(ctx, "start:"+c.Name, func(ctx context.Context) func() {
		var err error
		if sandboxConfig == nil {
			sandboxConfig, err = w.k.sandboxConfig(pod, attempt)
		}
		if err == nil {
			err = w.k.runContainer(ctx, in, sb.Id, sandboxConfig, w.touch)
		}
		return func() {
			w.stale.Store(true)
			w.sandbox = sandboxConfig
			if err != nil {
				w.failed(ctx, c, err)
				return
			}
			delete(w.waits, c.Name)
			delete(w.retry, c.Name)
			delete(w.retries, c.Name)
			delete(w.told, "failed "+c.Name)
		}
	})
}

// runContainer creates and starts one container and runs its postStart hook.
func (k *Kubelet) runContainer(ctx context.Context, in containerInputs, sandboxID string, sandbox *cri.PodSandboxConfig, running func()) error {
	pod, c := in.pod, in.spec
	ref := containerReference(pod, c)
	images, err := k.imageVolumes(ctx, pod, c, in.volumes, sandbox)
	if err != nil {
		return err
	}
	in.images = images
	cfg, err := k.containerConfig(ctx, in)
	if err != nil {
		return waitError{"CreateContainerConfigError", err.Error()}
	}
	if err := os.MkdirAll(filepath.Join(k.podLogDir(pod), c.Name), 0o755); err != nil {
		return waitError{"CreateContainerConfigError", err.Error()}
	}
	created, err := k.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandboxID, Config: cfg, SandboxConfig: sandbox})
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return waitError{"CreateContainerError", status.Convert(err).Message()}
	}
	k.events.Event(ref, corev1.EventTypeNormal, "Created", "Container created")
	id := created.ContainerId
	starting, cancel := whole(ctx)
	_, err = k.runtime.StartContainer(starting, &cri.StartContainerRequest{ContainerId: id})
	cancel()
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return waitError{"RunContainerError", status.Convert(err).Message()}
	}
	k.events.Event(ref, corev1.EventTypeNormal, "Started", "Container started")
	k.linkLog(pod, c, id, filepath.Join(k.podLogDir(pod), in.logPath))
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	running()
	if err := k.hook(ctx, pod, c, id, first(in.ips), c.Lifecycle.PostStart); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.events.Event(ref, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
		k.events.Event(ref, corev1.EventTypeNormal, "Killing", "FailedPostStartHook")
		_, _ = k.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: graceOf(pod, nil)})
		return waitError{"PostStartHookError", err.Error()}
	}
	return nil
}

// startTimeout bounds a call that starts a process.
const startTimeout = 4 * time.Minute

// whole is a context for a call that starts a process: called off half-way, it
// would leave the process to nobody. Whoever wants it to end ends it after.
func whole(ctx context.Context) (context.Context, context.CancelFunc) {
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
