package kubelet

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// A containerState is what a worker remembers of one container of the spec, by
// its name.
type containerState struct {
	// image is what the next start uses, once it is present.
	image *cri.Image
	// waiting is why it does not run, if it should; no reason: unknown.
	waiting waitError
	// crashes delays its restart, with the image crashImage and these resources.
	crashes        *delay
	crashImage     string
	crashResources corev1.ResourceRequirements
	// crashEvent is the id of the container whose back-off has had its event.
	crashEvent string
	// mayStop is closed when a sidecar's time to end has come.
	mayStop chan struct{}
}

// An instanceState is what a worker remembers of one container of the runtime,
// by its id.
type instanceState struct {
	// message is what it left when it exited; read says whether that was read.
	message string
	read    bool
	// exited is when it was first seen to have exited, by the clock of this process, which
	// nobody sets; zero: it was not.
	exited time.Time
	// grace is how long it was given to end, once it was asked to, seconds; stop is when
	// that is over.
	grace *int64
	stop  *stopTime
	// resources are the limits it was given last, as they were asked for.
	resources *cri.LinuxContainerResources
	// replaced: it was told to end for another to take its place.
	replaced bool
}

// container is the state of a container of the spec.
func (w *worker) container(name string) *containerState {
	c := w.containers[name]
	if c == nil {
		c = &containerState{}
		w.containers[name] = c
	}
	return c
}

// noteReplaced notes which of the containers that were just read are to be replaced.
func (w *worker) noteReplaced() {
	for _, c := range w.observed.Containers {
		if i := w.instances[c.Id]; i != nil && i.replaced {
			c.Replaced = true
		}
	}
}

// instance is the state of a container of the runtime.
func (w *worker) instance(id string) *instanceState {
	i := w.instances[id]
	if i == nil {
		i = &instanceState{}
		w.instances[id] = i
	}
	return i
}

// readMessages reads the termination messages of containers seen exited for the first
// time, and forgets the containers that are gone.
func (w *worker) readMessages() {
	for _, c := range w.observed.Containers {
		i := w.instance(c.Id)
		if c.Exited() && i.exited.IsZero() {
			i.exited = time.Now()
		}
		if c.Exited() && !i.read {
			m, ok := w.k.terminationMessage(c)
			i.message, i.read = m[:min(len(m), podMessage(w.pod))], ok
		}
	}
	maps.DeleteFunc(w.instances, func(id string, _ *instanceState) bool { return w.observed.ByID(id) == nil })
	maps.DeleteFunc(w.retries, func(key opKey, _ *retry) bool { return key.kind == opKill && w.observed.ByID(key.of) == nil })
}

// waits are the reasons of all containers that wait.
func (w *worker) waits() map[string]corev1.ContainerStateWaiting {
	out := map[string]corev1.ContainerStateWaiting{}
	for name, c := range w.containers {
		if c.waiting.reason != "" {
			out[name] = corev1.ContainerStateWaiting{Reason: c.waiting.reason, Message: c.waiting.message}
		}
	}
	return out
}

// messages are the termination messages of exited containers by id.
func (w *worker) messages() map[string]string {
	out := map[string]string{}
	for id, i := range w.instances {
		if i.read {
			out[id] = i.message
		}
	}
	return out
}

// settled is the pod without containers that are made and about to be started: a start
// is one step for those who watch, as upstream's is. Otherwise a restart would be
// counted while the status still shows how the container before it ended.
func (w *worker) settled() *runtimestate.Pod {
	starting := func(c *runtimestate.Container) bool {
		return c.State == cri.ContainerState_CONTAINER_CREATED && w.busy(opKey{kind: opStart, of: c.Name()})
	}
	if !slices.ContainsFunc(w.observed.Containers, starting) {
		return w.observed
	}
	v := *w.observed
	v.Containers = slices.DeleteFunc(slices.Clone(v.Containers), starting)
	return &v
}

// missesConfig says whether a container waits for an object it refers to.
func (s *containerState) missesConfig() bool { return s.waiting.reason == "CreateContainerConfigError" }

// anySpecRunning says whether a container other than a sidecar runs.
func anySpecRunning(pod *corev1.Pod, v *runtimestate.Pod) bool {
	for i := range pod.Spec.Containers {
		if c := v.Latest(pod.Spec.Containers[i].Name); c != nil && c.Running() {
			return true
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := v.Latest(pod.Spec.InitContainers[i].Name); c != nil && c.Running() && !podspec.IsSidecar(&pod.Spec.InitContainers[i]) {
			return true
		}
	}
	return false
}
