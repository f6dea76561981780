package fakecri

import (
	"context"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RunPodSandbox makes a sandbox with an address.
func (r *Runtime) RunPodSandbox(_ context.Context, q *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.call("RunPodSandbox", q.Config.Metadata.Name); err != nil {
		return nil, err
	}
	id := r.id("s")
	s := &cri.PodSandboxStatus{
		Id: id, Metadata: q.Config.Metadata, State: cri.PodSandboxState_SANDBOX_READY, CreatedAt: r.now(),
		Labels: q.Config.Labels, Annotations: q.Config.Annotations,
		Linux: &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: q.Config.Linux.GetSecurityContext().GetNamespaceOptions()}},
	}
	if s.Linux.Namespaces.Options.GetNetwork() != cri.NamespaceMode_NODE {
		s.Network = &cri.PodSandboxNetworkStatus{Ip: "10.9.0." + id[len(id)-1:]}
	}
	r.sandboxes[id] = s
	r.parents[q.Config.Metadata.Name] = q.Config.Linux.GetCgroupParent()
	r.emit(cri.ContainerEventType_CONTAINER_STARTED_EVENT, id, id)
	return &cri.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// StopPodSandbox stops a sandbox and what is in it.
func (r *Runtime) StopPodSandbox(_ context.Context, q *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[q.PodSandboxId]
	if s == nil {
		return &cri.StopPodSandboxResponse{}, nil
	}
	if err := r.call("StopPodSandbox", s.Metadata.Name); err != nil {
		return nil, err
	}
	for _, c := range r.containers {
		if c.sandbox == s.Id && c.State == cri.ContainerState_CONTAINER_RUNNING {
			r.exit(c, 137)
		}
	}
	stopped := proto.Clone(s).(*cri.PodSandboxStatus)
	stopped.State = cri.PodSandboxState_SANDBOX_NOTREADY
	r.sandboxes[s.Id] = stopped
	r.emit(cri.ContainerEventType_CONTAINER_STOPPED_EVENT, s.Id, s.Id)
	return &cri.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox removes a sandbox and what is in it.
func (r *Runtime) RemovePodSandbox(_ context.Context, q *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[q.PodSandboxId]; s != nil {
		if err := r.call("RemovePodSandbox", s.Metadata.Name); err != nil {
			return nil, err
		}
	} else {
		r.calls = append(r.calls, "RemovePodSandbox nothing")
	}
	for id, c := range r.containers {
		if c.sandbox == q.PodSandboxId {
			delete(r.containers, id)
		}
	}
	delete(r.sandboxes, q.PodSandboxId)
	return &cri.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus answers the status of a sandbox.
func (r *Runtime) PodSandboxStatus(_ context.Context, q *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[q.PodSandboxId]
	if s == nil {
		return nil, status.Error(codes.NotFound, "no such sandbox")
	}
	return &cri.PodSandboxStatusResponse{Status: s}, nil
}

// ListPodSandbox lists sandboxes.
func (r *Runtime) ListPodSandbox(_ context.Context, q *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &cri.ListPodSandboxResponse{}
	for _, s := range r.sandboxes {
		if matches(s.Labels, q.Filter.GetLabelSelector()) {
			out.Items = append(out.Items, &cri.PodSandbox{Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels, Annotations: s.Annotations})
		}
	}
	return out, nil
}

// CreateContainer makes a container.
func (r *Runtime) CreateContainer(_ context.Context, q *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := q.Config
	if err := r.call("CreateContainer", c.Metadata.Name); err != nil {
		return nil, err
	}
	if s := r.sandboxes[q.PodSandboxId]; s == nil || s.State != cri.PodSandboxState_SANDBOX_READY {
		return nil, status.Error(codes.NotFound, "no such sandbox")
	}
	id := r.id("c")
	r.containers[id] = &container{sandbox: q.PodSandboxId, ended: make(chan struct{}), ContainerStatus: &cri.ContainerStatus{
		Id: id, Metadata: c.Metadata, State: cri.ContainerState_CONTAINER_CREATED, CreatedAt: r.now(),
		Image: &cri.ImageSpec{Image: c.Image.Image, UserSpecifiedImage: c.Image.UserSpecifiedImage}, ImageRef: c.Image.Image,
		Labels: c.Labels, Annotations: c.Annotations, Mounts: c.Mounts,
		LogPath:   filepath.Join(q.SandboxConfig.GetLogDirectory(), c.LogPath),
		Resources: &cri.ContainerResources{Linux: c.Linux.GetResources()},
	}}
	return &cri.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer starts a container.
func (r *Runtime) StartContainer(_ context.Context, q *cri.StartContainerRequest) (*cri.StartContainerResponse, error) {
	r.mu.Lock()
	c := r.containers[q.ContainerId]
	if c == nil {
		r.mu.Unlock()
		return nil, status.Error(codes.NotFound, "no such container")
	}
	if err := r.call("StartContainer", c.Metadata.Name); err != nil {
		r.mu.Unlock()
		return nil, err
	}
	c.State, c.StartedAt = cri.ContainerState_CONTAINER_RUNNING, r.now()
	r.emit(cri.ContainerEventType_CONTAINER_STARTED_EVENT, c.Id, c.sandbox)
	started := r.Started
	r.mu.Unlock()
	if started != nil {
		started(c.Metadata.Name, c.Id)
	}
	return &cri.StartContainerResponse{}, nil
}

// StopContainer ends a container at once, as one does that heeds SIGTERM.
func (r *Runtime) StopContainer(_ context.Context, q *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[q.ContainerId]
	if c == nil {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	if err := r.call("StopContainer", c.Metadata.Name); err != nil {
		return nil, err
	}
	if c.State == cri.ContainerState_CONTAINER_RUNNING {
		r.exit(c, r.StopCode)
	}
	return &cri.StopContainerResponse{}, nil
}

// RemoveContainer removes a container.
func (r *Runtime) RemoveContainer(_ context.Context, q *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.containers, q.ContainerId)
	return &cri.RemoveContainerResponse{}, nil
}

// ContainerStatus answers the status of a container.
func (r *Runtime) ContainerStatus(_ context.Context, q *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[q.ContainerId]
	if c == nil {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &cri.ContainerStatusResponse{Status: proto.Clone(c.ContainerStatus).(*cri.ContainerStatus)}, nil
}

// ListContainers lists containers.
func (r *Runtime) ListContainers(_ context.Context, q *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &cri.ListContainersResponse{}
	for _, c := range r.containers {
		if matches(c.Labels, q.Filter.GetLabelSelector()) {
			out.Containers = append(out.Containers, &cri.Container{Id: c.Id, PodSandboxId: c.sandbox, Metadata: c.Metadata, Image: c.Image, ImageRef: c.ImageRef, State: c.State, CreatedAt: c.CreatedAt, Labels: c.Labels, Annotations: c.Annotations})
		}
	}
	return out, nil
}

// ExecSync answers with OnExec.
func (r *Runtime) ExecSync(_ context.Context, q *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	r.mu.Lock()
	c, exec := r.containers[q.ContainerId], r.OnExec
	runs := c != nil && c.State == cri.ContainerState_CONTAINER_RUNNING
	r.mu.Unlock()
	if !runs {
		return nil, status.Error(codes.NotFound, "container is not running")
	}
	if exec == nil {
		return &cri.ExecSyncResponse{}, nil
	}
	out, code := exec(c.Metadata.Name, q.Cmd)
	return &cri.ExecSyncResponse{Stdout: []byte(out), ExitCode: code}, nil
}

// CheckpointContainer tells the test.
func (r *Runtime) CheckpointContainer(_ context.Context, q *cri.CheckpointContainerRequest) (*cri.CheckpointContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[q.ContainerId]
	switch {
	case c == nil:
		return nil, status.Error(codes.NotFound, "no such container")
	case r.OnCheckpoint == nil:
		return nil, status.Error(codes.Unknown, "checkpoint/restore support not available")
	}
	r.OnCheckpoint(c.Metadata.Name, q.Location, q.Timeout)
	return &cri.CheckpointContainerResponse{}, nil
}

// UpdatePodSandboxResources is told what a pod is to have.
func (r *Runtime) UpdatePodSandboxResources(_ context.Context, q *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[q.PodSandboxId]
	if s == nil {
		return nil, status.Error(codes.NotFound, "no such sandbox")
	}
	if err := r.call("UpdatePodSandboxResources", s.Metadata.Name); err != nil {
		return nil, err
	}
	r.sandboxResources[s.Metadata.Name] = q.Resources
	return &cri.UpdatePodSandboxResourcesResponse{}, nil
}

// UpdateContainerResources changes the limits of a container.
func (r *Runtime) UpdateContainerResources(_ context.Context, q *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[q.ContainerId]
	if c == nil {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	if err := r.call("UpdateContainerResources", c.Metadata.Name); err != nil {
		return nil, err
	}
	changed := &cri.LinuxContainerResources{} // what is not said stays, as with real runtimes
	proto.Merge(changed, c.Resources.GetLinux())
	proto.Merge(changed, q.Linux)
	c.Resources = &cri.ContainerResources{Linux: changed}
	return &cri.UpdateContainerResourcesResponse{}, nil
}

// ListContainerStats answers what containers wrote to their own file systems.
func (r *Runtime) ListContainerStats(context.Context, *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &cri.ListContainerStatsResponse{}
	for _, c := range r.containers {
		out.Stats = append(out.Stats, &cri.ContainerStats{
			Attributes:    &cri.ContainerAttributes{Id: c.Id, Metadata: c.Metadata, Labels: c.Labels, Annotations: c.Annotations},
			WritableLayer: &cri.FilesystemUsage{UsedBytes: &cri.UInt64Value{Value: r.layers[c.Metadata.Name]}, InodesUsed: &cri.UInt64Value{Value: 1}},
		})
	}
	return out, nil
}

// ContainerStats answers how much memory a container uses.
func (r *Runtime) ContainerStats(_ context.Context, q *cri.ContainerStatsRequest) (*cri.ContainerStatsResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[q.ContainerId]
	if c == nil {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	out := &cri.ContainerStats{Attributes: &cri.ContainerAttributes{Id: c.Id, Metadata: c.Metadata, Labels: c.Labels, Annotations: c.Annotations}}
	if r.Memory != nil {
		out.Memory = &cri.MemoryUsage{UsageBytes: &cri.UInt64Value{Value: r.Memory(c.Metadata.Name)}}
	}
	return &cri.ContainerStatsResponse{Stats: out}, nil
}

// ImageStatus finds an image.
func (r *Runtime) ImageStatus(_ context.Context, q *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, i := range r.images {
		if name == q.Image.Image || i.Id == q.Image.Image {
			return &cri.ImageStatusResponse{Image: i}, nil
		}
	}
	return &cri.ImageStatusResponse{}, nil
}

// ListImages lists images.
func (r *Runtime) ListImages(context.Context, *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &cri.ListImagesResponse{}
	for _, i := range r.images {
		out.Images = append(out.Images, i)
	}
	return out, nil
}

// PullImage asks Registry; without one it fails for images that are not present.
func (r *Runtime) PullImage(ctx context.Context, q *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	if r.Pulling != nil {
		r.Pulling(ctx, q.Image.Image)
	}
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.call("PullImage", q.Image.Image); err != nil {
		return nil, err
	}
	if r.Registry != nil {
		if err := r.Registry(q.Image.Image, meant(q.Auth, q.Image.Image)); err != nil {
			return nil, err
		}
		r.load(q.Image.Image)
	}
	if i := r.images[q.Image.Image]; i != nil {
		return &cri.PullImageResponse{ImageRef: i.Id}, nil
	}
	return nil, status.Error(codes.NotFound, "no such image")
}

// meant is what containerd gives an image's registry of the credentials of a pull: nothing,
// if they name a server whose host, as a URL's, is not the registry.
func meant(auth *cri.AuthConfig, image string) *cri.AuthConfig {
	host, _, _ := strings.Cut(image, "/")
	if s := auth.GetServerAddress(); s != "" {
		if u, err := url.Parse(s); err != nil || u.Host != host {
			return nil
		}
	}
	return auth
}

// RemoveImage removes an image.
func (r *Runtime) RemoveImage(_ context.Context, q *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, i := range r.images {
		if i.Id == q.Image.Image {
			delete(r.images, name)
		}
	}
	return &cri.RemoveImageResponse{}, nil
}

// ImageFsInfo knows no file system.
func (r *Runtime) ImageFsInfo(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	res := &cri.ImageFsInfoResponse{ImageFilesystems: []*cri.FilesystemUsage{{Timestamp: time.Now().UnixNano(), FsId: &cri.FilesystemIdentifier{Mountpoint: "/"}}}}
	if r.ContainerDir != "" {
		res.ContainerFilesystems = []*cri.FilesystemUsage{{Timestamp: time.Now().UnixNano(), FsId: &cri.FilesystemIdentifier{Mountpoint: r.ContainerDir}}}
	}
	return res, nil
}
