package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/server"
)

// maxCheckpoint bounds how many seconds a checkpoint may take, whatever is asked for.
const maxCheckpoint = 3600

// Checkpoint has the runtime write the state of a container into a file below the
// kubelet's directory, in which nobody but root reads: it holds the memory of its
// processes.
func (h host) Checkpoint(ctx context.Context, t server.Target, timeout int64) (string, error) {
	s, ok := h.find(t.Namespace, t.Pod, t.UID)
	if !ok {
		return "", server.NotFound("pod does not exist")
	}
	if spec, _ := podspec.FindContainer(s.pod, t.Container); spec == nil {
		return "", server.NotFound("container %v does not exist", t.Container)
	}
	if timeout < 0 {
		return "", errors.New("CheckpointContainer requires the timeout value to be > 0")
	}
	if s.observed == nil || s.observed.Latest(t.Container) == nil {
		return "", fmt.Errorf("container %v not found", t.Container)
	}
	dir := filepath.Join(h.k.cfg.RootDir, "checkpoints")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	q := &cri.CheckpointContainerRequest{
		ContainerId: s.observed.Latest(t.Container).Id,
		Location:    filepath.Join(dir, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", t.Pod, t.Namespace, t.Container, time.Now().Format(time.RFC3339))),
	}
	q.Timeout = int64(callLimit(&cri.CheckpointContainerRequest{Timeout: timeout}, h.k.cfg.Settings.RuntimeRequestTimeout.Duration) / time.Second)
	_, err := h.k.runtime.CheckpointContainer(ctx, q)
	return q.Location, err
}
