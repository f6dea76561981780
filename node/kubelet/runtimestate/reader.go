package runtimestate

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/crilabels"
)

// A Reader reads what the runtime has of a pod and caches the statuses that do
// not change any more, so that reading again costs two list calls.
type Reader struct {
	runtime    cri.RuntimeServiceClient
	sandboxes  map[string]Sandbox
	containers map[string]*Container
}

// NewReader reads from this runtime.
func NewReader(rt cri.RuntimeServiceClient) *Reader {
	return &Reader{runtime: rt, sandboxes: map[string]Sandbox{}, containers: map[string]*Container{}}
}

// Forget drops the cached status of one container, whose status may change
// without its state changing (after a resize).
func (r *Reader) Forget(id string) { delete(r.containers, id) }

// Read asks the runtime for the sandboxes and containers of a pod.
func (r *Reader) Read(ctx context.Context, uid types.UID) (*Pod, error) {
	sel := map[string]string{crilabels.PodUID: string(uid)}
	sl, err := r.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: sel}})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	cl, err := r.runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: sel}})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	v := &Pod{}
	sandboxes := make(map[string]Sandbox, len(sl.Items))
	for _, s := range sl.Items {
		known, ok := r.sandboxes[s.Id]
		if !ok || known.State != s.State {
			res, err := r.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.Id})
			if status.Code(err) == codes.NotFound {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("sandbox status: %w", err)
			}
			known = Sandbox{res.Status}
		}
		sandboxes[s.Id] = known
		v.Sandboxes = append(v.Sandboxes, known)
	}
	containers := make(map[string]*Container, len(cl.Containers))
	for _, c := range cl.Containers {
		known, ok := r.containers[c.Id]
		if !ok || known.State != c.State || known.State == cri.ContainerState_CONTAINER_CREATED {
			res, err := r.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
			if status.Code(err) == codes.NotFound {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("container status: %w", err)
			}
			known = &Container{ContainerStatus: res.Status, SandboxID: c.PodSandboxId}
		}
		containers[c.Id] = known
		v.Containers = append(v.Containers, known)
	}
	r.sandboxes, r.containers = sandboxes, containers
	slices.SortFunc(v.Sandboxes, func(a, b Sandbox) int {
		return later(a.Metadata.GetAttempt(), b.Metadata.GetAttempt(), a.CreatedAt, b.CreatedAt)
	})
	slices.SortFunc(v.Containers, func(a, b *Container) int {
		return later(a.Metadata.GetAttempt(), b.Metadata.GetAttempt(), a.CreatedAt, b.CreatedAt)
	})
	return v, nil
}

// later compares two attempts, the later one first. The clock counts only where the attempts
// are the same, as of containers of different names: it may have been set back since, and then
// the container before would be taken for the one that runs, and that be started once more.
func later(a, b uint32, createdA, createdB int64) int {
	return cmp.Or(cmp.Compare(b, a), cmp.Compare(createdB, createdA))
}
