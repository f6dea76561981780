package runtimestate

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/crilabels"
	"knarr/node/kubelet/podspec"
)

// A Container is one container as the runtime reports it.
type Container struct {
	*cri.ContainerStatus
	SandboxID string
	// Replaced says that it was told to end for another to take its place, whatever
	// its exit code and the restart policy.
	Replaced bool
}

// Name is the name of the container in the pod's spec.
func (c *Container) Name() string { return c.Labels[crilabels.ContainerName] }

// Running says whether it runs.
func (c *Container) Running() bool { return c.State == cri.ContainerState_CONTAINER_RUNNING }

// Exited says whether it has ended.
func (c *Container) Exited() bool { return c.State == cri.ContainerState_CONTAINER_EXITED }

// Restarts is how often a container of that name was started before it.
func (c *Container) Restarts() int {
	n, _ := strconv.Atoi(c.Annotations[crilabels.RestartCount])
	return n
}

// MemoryRequest is what it was started with, if it begins anew when that changes.
func (c *Container) MemoryRequest() (int64, bool) {
	n, err := strconv.ParseInt(c.Annotations[crilabels.MemoryRequest], 10, 64)
	return n, err == nil
}

// Started is when it was started.
func (c *Container) Started() time.Time { return time.Unix(0, c.StartedAt) }

// Finished is when it ended.
func (c *Container) Finished() time.Time { return time.Unix(0, c.FinishedAt) }

// ShouldRestart says whether a container that does not run should.
func ShouldRestart(pod *corev1.Pod, c *corev1.Container, s *Container) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	if s == nil || s.State == cri.ContainerState_CONTAINER_UNKNOWN || s.State == cri.ContainerState_CONTAINER_CREATED {
		return true
	}
	if s.Running() {
		return false
	}
	return s.Replaced || podspec.RestartsOn(pod, c, s.ExitCode)
}

// RestartAllSources are the containers that ended by a rule after which all of the pod
// begin anew, each the newest of its name. While there is one, they have not begun yet.
func RestartAllSources(pod *corev1.Pod, v *Pod) (sources []*Container) {
	if !podspec.MayRestartAll(pod) {
		return nil
	}
	for _, all := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range all {
			if c := v.Latest(all[i].Name); c != nil && c.Exited() && podspec.RestartsAllOn(&all[i], c.ExitCode) {
				sources = append(sources, c)
			}
		}
	}
	return sources
}
