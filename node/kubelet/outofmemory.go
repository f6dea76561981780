package kubelet

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/systemoom"
)

// watchMemory tells when the node ran out of memory. Where the kernel's log may not be
// read, nobody can.
func (k *Kubelet) watchMemory(ctx context.Context) {
	err := systemoom.Watch(ctx, "/dev/kmsg", func(process string, pid int) {
		k.events.Event(k.nodeRef(), corev1.EventTypeWarning, "SystemOOM", fmt.Sprintf("System OOM encountered, victim process: %s, pid: %d", process, pid))
	})
	if err != nil {
		slog.Info("events do not tell when the node runs out of memory", "err", err)
		<-ctx.Done()
	}
}
