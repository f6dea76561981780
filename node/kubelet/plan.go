package kubelet

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/criconfig"
	"knarr/node/kubelet/crilabels"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/runtimestate"
)

// A verdict is what the probes say of one container.
type verdict int

const (
	unknown verdict = iota
	success
	failure
)

// probeResults is what a plan asks about probes, by container id.
type probeResults interface {
	Liveness(containerID string) verdict
	Startup(containerID string) verdict
}

// actions is what has to be done for a pod to be as its spec says.
type actions struct {
	// finish: nothing is left to run; the pod ends.
	finish bool
	// replace: the sandbox is missing, dead or of the wrong kind; everything in
	// it is stopped and a new one is made.
	replace bool
	attempt uint32
	start   []*corev1.Container
	kill    []killing
	// reset: all containers begin anew, after the end of sources. Those that there are
	// are ended and removed, in this order, before anything else is done.
	reset, sources []*runtimestate.Container
}

type killing struct {
	id, name, message, reason string
	again                     bool // another takes its place, whatever its exit code
}

// plan compares a pod with what the runtime holds of it. It is only asked for
// pods that should run.
func plan(pod *corev1.Pod, v *runtimestate.Pod, probes probeResults) actions {
	if sources := runtimestate.RestartAllSources(pod, v); len(sources) > 0 {
		return actions{reset: planReset(pod, v, sources), sources: sources}
	}
	var a actions
	a.replace, a.attempt = runtimestate.SandboxChanged(pod, v)
	if a.replace {
		planFresh(pod, v, &a)
		return a
	}
	for i := range pod.Spec.EphemeralContainers {
		c := (*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if v.Latest(c.Name) == nil {
			a.start = append(a.start, c)
		}
	}
	ephemeral := len(a.start)
	if !planInit(pod, v, probes, &a) {
		return a
	}
	keep := 0
	var mains []*corev1.Container
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		s := v.Latest(c.Name)
		if s == nil || !s.Running() {
			if runtimestate.ShouldRestart(pod, c, s) {
				mains = append(mains, c)
				if s != nil && s.State == cri.ContainerState_CONTAINER_UNKNOWN {
					a.kill = append(a.kill, killing{s.Id, c.Name, `Container is in "unknown" state, try killing it before restart`, "Unknown", true})
				}
			}
			continue
		}
		message, reason := "", ""
		restart := pod.Spec.RestartPolicy != corev1.RestartPolicyNever
		if c.RestartPolicy != nil {
			restart = *c.RestartPolicy != corev1.ContainerRestartPolicyNever
		}
		switch {
		case changed(c, s):
			message, restart = fmt.Sprintf("Container %s definition changed", c.Name), true
		case probes.Liveness(s.Id) == failure:
			message, reason = fmt.Sprintf("Container %s failed liveness probe", c.Name), "LivenessProbe"
		case probes.Startup(s.Id) == failure:
			message, reason = fmt.Sprintf("Container %s failed startup probe", c.Name), "StartupProbe"
		default:
			keep++
			continue
		}
		if restart {
			message += ", will be restarted"
			mains = append(mains, c)
		} else {
			keep++ // it still runs; the pod ends when it has
		}
		a.kill = append(a.kill, killing{s.Id, c.Name, message, reason, restart})
	}
	if keep == 0 && len(mains) == 0 {
		a.finish = true
		a.start = a.start[:ephemeral]
	}
	a.start = append(a.start, mains...)
	return a
}

// planFresh plans the start from a new sandbox.
func planFresh(pod *corev1.Pod, v *runtimestate.Pod, a *actions) {
	if pod.Spec.RestartPolicy == corev1.RestartPolicyNever && a.attempt != 0 && len(v.Containers) != 0 && !anyRestartable(pod) {
		a.replace, a.finish = false, true
		return
	}
	var mains []*corev1.Container
	created := false
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		s := v.Latest(c.Name)
		created = created || s != nil
		once := pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
		if c.RestartPolicy != nil {
			once = *c.RestartPolicy == corev1.ContainerRestartPolicyOnFailure
		}
		if once && s != nil && s.Exited() && s.ExitCode == 0 {
			continue
		}
		mains = append(mains, c)
	}
	if len(mains) == 0 && created {
		a.replace, a.finish = false, true
		return
	}
	if len(pod.Spec.InitContainers) > 0 {
		a.start = []*corev1.Container{&pod.Spec.InitContainers[0]}
		return
	}
	a.start = mains
}

func anyRestartable(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return c.RestartPolicy != nil && *c.RestartPolicy != corev1.ContainerRestartPolicyNever
	})
}

// planInit plans the init containers; true once the regular ones may start.
func planInit(pod *corev1.Pod, v *runtimestate.Pod, probes probeResults, a *actions) bool {
	if len(pod.Spec.InitContainers) == 0 {
		return true
	}
	passed := false // init has been passed at least once in this sandbox
	for i := range pod.Spec.Containers {
		if s := v.Latest(pod.Spec.Containers[i].Name); s != nil && runtimestate.InSandbox(s, v) {
			passed = true
		}
	}
	done := true // every container before i has done what the next one waits for
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		s := v.Latest(c.Name)
		if s != nil && !runtimestate.InSandbox(s, v) {
			s = nil
		}
		sidecar := podspec.IsSidecar(c)
		if !sidecar {
			if passed || laterStarted(pod, v, i) {
				continue
			}
			if !done {
				return false
			}
			switch {
			case s == nil || s.State == cri.ContainerState_CONTAINER_CREATED:
				a.start = append(a.start, c)
				return false
			case s.Running():
				return false
			case s.Exited() && s.ExitCode == 0 && s.Reason != outOfMemory:
				continue
			}
			if !restartsInit(pod, c, s) {
				a.finish, a.start = true, nil
				return false
			}
			if s.State == cri.ContainerState_CONTAINER_UNKNOWN {
				a.kill = append(a.kill, killing{s.Id, c.Name, `Init container is in "unknown" state, try killing it before restart`, "Unknown", true})
			}
			a.start = append(a.start, c)
			return false
		}
		if !done && s == nil {
			continue
		}
		switch {
		case s == nil || s.Exited() || s.State == cri.ContainerState_CONTAINER_CREATED:
			a.start = append(a.start, c)
			done = passed && done
		case s.State == cri.ContainerState_CONTAINER_UNKNOWN:
			a.kill = append(a.kill, killing{s.Id, c.Name, `Init container is in "unknown" state, try killing it before restart`, "Unknown", true})
			a.start = append(a.start, c)
			done = false
		case probes.Startup(s.Id) == failure:
			a.kill = append(a.kill, killing{s.Id, c.Name, fmt.Sprintf("Init container %s failed startup probe", c.Name), "StartupProbe", true})
			a.start = append(a.start, c)
			done = false
		case c.StartupProbe != nil && probes.Startup(s.Id) != success:
			done = false
		case changed(c, s):
			a.kill = append(a.kill, killing{s.Id, c.Name, fmt.Sprintf("Init container %s definition changed", c.Name), "", true})
			a.start = append(a.start, c)
		case probes.Liveness(s.Id) == failure:
			a.kill = append(a.kill, killing{s.Id, c.Name, fmt.Sprintf("Init container %s failed liveness probe", c.Name), "LivenessProbe", true})
			a.start = append(a.start, c)
		}
	}
	return done || passed
}

// outOfMemory is the runtime's reason of the end of a container in which the kernel ended a
// process for want of memory. An init container may have lost a child by that, and have done
// half of its work: it failed, whatever its exit code.
const outOfMemory = "OOMKilled"

// restartsInit says whether an init container that failed is started again. Of one that ran
// out of memory the exit code may be 0, which is not what its policy is to be asked about.
func restartsInit(pod *corev1.Pod, c *corev1.Container, s *runtimestate.Container) bool {
	return runtimestate.ShouldRestart(pod, c, s) || s.Reason == outOfMemory && podspec.RestartsOn(pod, c, 128+9)
}

// laterStarted says whether an init container after i was started in this
// sandbox, which it could not have been before i was through.
func laterStarted(pod *corev1.Pod, v *runtimestate.Pod, i int) bool {
	for j := i + 1; j < len(pod.Spec.InitContainers); j++ {
		if s := v.Latest(pod.Spec.InitContainers[j].Name); s != nil && runtimestate.InSandbox(s, v) {
			return true
		}
	}
	return false
}

// changed says whether a container was made of another definition. Only what
// may change in a running pod counts: its image.
func changed(c *corev1.Container, s *runtimestate.Container) bool {
	h := s.Annotations[crilabels.ContainerHash]
	return h != "" && h != criconfig.ContainerHash(c)
}
