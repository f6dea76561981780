// Package fakecri is a container runtime in memory for tests: it keeps
// sandboxes, containers and images as a real one does, sends their events, and
// runs nothing. It reads and writes nothing outside the process.
package fakecri

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/memnet"
	"knarr/internal/run"
)

// A Runtime is the fake. Its methods are what a test does to it.
type Runtime struct {
	// NoEvents makes it one that reports none, if it is set before the kubelet starts.
	NoEvents bool
	// Systemd says whether it makes control groups by systemd; nil: it is older than
	// that question.
	Systemd func() bool
	cri.UnimplementedRuntimeServiceServer
	cri.UnimplementedImageServiceServer

	// OnExec answers ExecSync by container name; nil: exit code 0.
	OnExec func(container string, cmd []string) (stdout string, code int32)
	// StopCode is what containers end with that are stopped.
	StopCode int32
	// Fail makes a call fail, by its method name; nil error: it succeeds.
	Fail func(method string) error
	// Registry says whether a pull with these credentials is allowed, and makes
	// the image present; nil: only images that are present can be pulled.
	Registry func(image string, auth *cri.AuthConfig) error
	// Pulling is called when a pull begins, which goes on when it returns. ctx ends when the
	// pull is given up.
	Pulling func(ctx context.Context, image string)
	// Started is called when a container has started, by its name.
	Started func(container, id string)
	// ContainerDir is where what containers write is said to be; "": nothing is said of it.
	ContainerDir string
	// Memory is what containers are said to use, by name; nil: nothing is said of it.
	Memory func(container string) uint64
	// Handlers are those that it is said to have.
	Handlers []*cri.RuntimeHandler
	// OnCheckpoint is told which container's state is to be written where; nil: there are
	// no checkpoints.
	OnCheckpoint func(container, path string, seconds int64)

	mu         sync.Mutex
	next       int
	clock      int64
	sandboxes  map[string]*cri.PodSandboxStatus
	containers map[string]*container
	images     map[string]*cri.Image
	streams    map[chan *cri.ContainerEventResponse]bool
	calls      []string
	// sandboxResources are those that the runtime was told of last, by pod.
	sandboxResources map[string]*cri.LinuxContainerResources
	parents          map[string]string // control groups that sandboxes were asked for in, by pod
	layers           map[string]uint64
	ln               *memnet.Listener
	srv              *grpc.Server
}

type container struct {
	*cri.ContainerStatus
	sandbox string
	ended   chan struct{}
}

// New returns a runtime that has the images.
func New(images ...string) *Runtime {
	r := &Runtime{
		sandboxes: map[string]*cri.PodSandboxStatus{}, containers: map[string]*container{},
		images: map[string]*cri.Image{}, layers: map[string]uint64{}, parents: map[string]string{}, sandboxResources: map[string]*cri.LinuxContainerResources{}, streams: map[chan *cri.ContainerEventResponse]bool{},
		ln: memnet.Listen(),
	}
	for _, i := range images {
		r.Load(i)
	}
	r.srv = grpc.NewServer()
	cri.RegisterRuntimeServiceServer(r.srv, r)
	cri.RegisterImageServiceServer(r.srv, r)
	run.Go("CRI of tests", func() { _ = r.srv.Serve(r.ln) })
	return r
}

// Load makes an image present, as a command on the node does.
func (r *Runtime) Load(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.load(image)
}

func (r *Runtime) load(image string) {
	r.images[image] = &cri.Image{Id: "sha256:" + image, RepoTags: []string{image}, Size: 1 << 20, Uid: &cri.Int64Value{}}
}

// Close ends the runtime.
func (r *Runtime) Close() { r.srv.Stop(); _ = r.ln.Close() }

// Dial connects to the runtime.
func (r *Runtime) Dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///fake", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.ln.Dial(ctx, "", "") }))
}

// Calls are the changing calls made so far, with the name they were about.
func (r *Runtime) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// SetLayer says how much containers of that name wrote to their own file systems.
func (r *Runtime) SetLayer(name string, bytes uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.layers[name] = bytes
}

// Exit ends the running containers of that name.
func (r *Runtime) Exit(name string, code int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.Metadata.Name == name && c.State == cri.ContainerState_CONTAINER_RUNNING {
			r.exit(c, code)
		}
	}
}

// Running are the names of the running containers, sorted.
func (r *Runtime) Running() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING {
			names = append(names, c.Metadata.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Resources are the limits of the running container of that name.
func (r *Runtime) Resources(name string) *cri.LinuxContainerResources {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.Metadata.Name == name && c.State == cri.ContainerState_CONTAINER_RUNNING {
			return c.Resources.GetLinux()
		}
	}
	return nil
}

// SandboxResources are those that a pod was resized to.
func (r *Runtime) SandboxResources(pod string) *cri.LinuxContainerResources {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sandboxResources[pod]
}

// Namespaces are those that the sandbox of a pod was asked for with.
func (r *Runtime) Namespaces(pod string) *cri.NamespaceOption {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sandboxes {
		if s.Metadata.Name == pod && s.State == cri.PodSandboxState_SANDBOX_READY {
			return s.Linux.GetNamespaces().GetOptions()
		}
	}
	return nil
}

// CgroupParent is the control group that a pod's latest sandbox was asked for in.
func (r *Runtime) CgroupParent(pod string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.parents[pod]
}

// Mounts are those of a running container.
func (r *Runtime) Mounts(name string) []*cri.Mount {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.Metadata.Name == name && c.State == cri.ContainerState_CONTAINER_RUNNING {
			return c.Mounts
		}
	}
	return nil
}

// Empty says whether the runtime holds nothing of pods.
func (r *Runtime) Empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sandboxes)+len(r.containers) == 0
}

// call notes a call; the lock is held.
func (r *Runtime) call(method, name string) error {
	r.calls = append(r.calls, method+" "+name)
	if r.Fail != nil {
		return r.Fail(method)
	}
	return nil
}

func (r *Runtime) id(kind string) string { r.next++; return fmt.Sprintf("%s%04d", kind, r.next) }

// now is a time later than all before it.
func (r *Runtime) now() int64 {
	r.clock = max(r.clock+1, time.Now().UnixNano())
	return r.clock
}

func (r *Runtime) exit(c *container, code int32) {
	c.State, c.ExitCode, c.FinishedAt, c.Reason = cri.ContainerState_CONTAINER_EXITED, code, r.now(), "Completed"
	if code != 0 {
		c.Reason = "Error"
	}
	close(c.ended)
	r.emit(cri.ContainerEventType_CONTAINER_STOPPED_EVENT, c.Id, c.sandbox)
}

func (r *Runtime) emit(kind cri.ContainerEventType, id, sandbox string) {
	ev := &cri.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: r.now()}
	if s := r.sandboxes[sandbox]; s != nil {
		ev.PodSandboxStatus = &cri.PodSandboxStatus{Id: s.Id, Metadata: s.Metadata, State: s.State}
	}
	for ch := range r.streams {
		select {
		case ch <- ev:
		default: // a reader this slow looks again by itself
		}
	}
}

// GetContainerEvents streams events.
func (r *Runtime) GetContainerEvents(_ *cri.GetEventsRequest, s cri.RuntimeService_GetContainerEventsServer) error {
	if r.NoEvents {
		return status.Error(codes.Unimplemented, "no events")
	}
	ch := make(chan *cri.ContainerEventResponse, 256)
	r.mu.Lock()
	r.streams[ch] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.streams, ch)
		r.mu.Unlock()
	}()
	for {
		select {
		case <-s.Context().Done():
			return nil
		case ev := <-ch:
			if err := s.Send(ev); err != nil {
				return err
			}
		}
	}
}

// Version names the runtime.
func (r *Runtime) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: "fake", RuntimeVersion: "1", RuntimeApiVersion: "v1"}, nil
}

// RuntimeConfig says how it makes control groups.
func (r *Runtime) RuntimeConfig(context.Context, *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse, error) {
	if r.Fail != nil {
		if err := r.Fail("RuntimeConfig"); err != nil {
			return nil, err
		}
	}
	if r.Systemd == nil {
		return nil, status.Error(codes.Unimplemented, "it is older than that")
	}
	driver := cri.CgroupDriver_CGROUPFS
	if r.Systemd() {
		driver = cri.CgroupDriver_SYSTEMD
	}
	return &cri.RuntimeConfigResponse{Linux: &cri.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// Status says that all is well.
func (r *Runtime) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	if r.Fail != nil {
		if err := r.Fail("Status"); err != nil {
			return nil, err
		}
	}
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
		{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Status: true}}},
		RuntimeHandlers: r.Handlers, Features: &cri.RuntimeFeatures{SupplementalGroupsPolicy: true}}, nil
}

func matches(labels, selector map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}
