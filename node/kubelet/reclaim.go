package kubelet

import (
	"context"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/runtimestate"
)

// freeEnded removes what the runtime still has of pods that have ended, and the logs of
// their containers: nobody but who reads logs misses it. The status of the pods stays.
func (k *Kubelet) freeEnded(ctx context.Context) {
	for _, w := range k.all() {
		s := w.shown.Load()
		if !s.ended || s.observed == nil || len(s.observed.Containers)+len(s.observed.Sandboxes) == 0 {
			continue
		}
		for _, c := range s.observed.Containers {
			if c.Exited() {
				k.removeDead(ctx, s.pod, c)
			}
		}
		for _, box := range s.observed.Sandboxes {
			if !box.Ready() {
				_, _ = k.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: box.Id}) // again with the pod
			}
		}
		w.touch()
	}
}

// removeDead removes a container that has ended, with its logs. What cannot be removed goes
// with its pod.
func (k *Kubelet) removeDead(ctx context.Context, pod *corev1.Pod, c *runtimestate.Container) {
	if _, err := k.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.Id}); err != nil {
		return
	}
	if c.LogPath != "" && filepath.Dir(filepath.Dir(c.LogPath)) == k.podLogDir(pod) {
		rotated, _ := filepath.Glob(c.LogPath + "*")
		for _, f := range rotated {
			_ = os.Remove(f)
		}
	}
	if k.cfg.ContainerLogsDir != "" {
		_ = os.Remove(k.logLink(pod.Name, pod.Namespace, c.Name(), c.Id))
	}
}
