// Package shim runs containers in containerd's place of a shim for each pod:
// one process for all of a node, with libcontainer in it, that outlives the
// process containerd is in. It reads the bundles that containerd writes, serves
// containerd's task API on a unix socket, sends events to containerd's, and
// writes beside each bundle what it needs to go on with its container after its
// own end.
package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	eventstypes "github.com/containerd/containerd/api/events"
	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"knarr/internal/run"
)

// A key names a container: two namespaces of containerd may use the same id.
type key struct{ namespace, id string }

// rootName is the directory beside the sockets with the state of containers that are created
// without saying where theirs is to be.
const rootName = "runc"

// A Service is the task API for all containers of a node.
type Service struct {
	state     string   // the directory of sockets
	bundles   []string // the directories of bundles, by namespace and id
	sandboxes sandboxes
	events    *publisher
	reaping   atomic.Bool // what failed starts left will be looked for
	starts    places      // of execs that are being started
	execs     places      // of those that are not deleted
	filters   filters
	ooms      oomWatch

	// changing is held by calls that change something, and by whoever replaces
	// this program: no call is cut in two.
	changing sync.RWMutex

	mu    sync.Mutex
	tasks map[key]*task
}

// get finds a container; it answers NotFound, as other shims do.
func (s *Service) get(ctx context.Context, id string) (*task, error) {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	s.mu.Lock()
	t := s.tasks[key{ns, id}]
	created := t != nil && t.init != nil
	s.mu.Unlock()
	if !created {
		return nil, errgrpc.ToGRPCf(errdefs.ErrNotFound, "container not created")
	}
	return t, nil
}

func (s *Service) process(ctx context.Context, id, execID string) (*task, *process, error) {
	t, err := s.get(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	if execID == "" {
		return t, t.init, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.execs[execID]
	if p == nil {
		return nil, nil, errgrpc.ToGRPCf(errdefs.ErrNotFound, "process does not exist %s", execID)
	}
	return t, p, nil
}

// Create prepares a container up to its last step, which Start does.
func (s *Service) Create(ctx context.Context, r *api.CreateTaskRequest) (*api.CreateTaskResponse, error) {
	s.changing.RLock()
	defer s.changing.RUnlock()
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if r.Checkpoint != "" {
		return nil, errgrpc.ToGRPCf(errdefs.ErrNotImplemented, "restore a checkpoint")
	}
	if !slices.ContainsFunc(s.bundles, func(dir string) bool { return filepath.Join(dir, ns, r.ID) == filepath.Clean(r.Bundle) }) {
		return nil, errgrpc.ToGRPCf(errdefs.ErrInvalidArgument, "the bundle is %s, not %s", filepath.Join(s.bundles[0], ns, r.ID), r.Bundle)
	}
	t := &task{key: key{ns, r.ID}, bundle: r.Bundle, service: s, execs: map[string]*process{}}
	s.mu.Lock()
	if s.tasks[t.key] != nil {
		s.mu.Unlock()
		return nil, errgrpc.ToGRPCf(errdefs.ErrAlreadyExists, "container %s", r.ID)
	}
	s.tasks[t.key] = t
	s.mu.Unlock()
	if err := t.create(ctx, r); err != nil {
		s.forget(t)
		return nil, errgrpc.ToGRPC(fmt.Errorf("OCI runtime create failed: runc create failed: %w", err))
	}
	s.events.send(ns, "/tasks/create", &eventstypes.TaskCreate{
		ContainerID: r.ID, Bundle: r.Bundle, Rootfs: r.Rootfs, Pid: uint32(t.init.pid), Checkpoint: r.Checkpoint,
		IO: &eventstypes.TaskIO{Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Terminal: r.Terminal},
	})
	run.Go("shim: container", func() { t.watch(t.init) })
	return &api.CreateTaskResponse{Pid: uint32(t.init.pid)}, nil
}

func (s *Service) forget(t *task) {
	s.mu.Lock()
	delete(s.tasks, t.key)
	s.mu.Unlock()
	t.forgetExecs()
}

// Start lets a container, or a process that Exec prepared, begin.
func (s *Service) Start(ctx context.Context, r *api.StartRequest) (*api.StartResponse, error) {
	s.changing.RLock()
	defer s.changing.RUnlock()
	t, p, err := s.process(ctx, r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	p.lifecycle.Lock() // its end is told after its start
	defer p.lifecycle.Unlock()
	if p.started.Load() {
		return nil, errgrpc.ToGRPCf(errdefs.ErrFailedPrecondition, "cannot start a running process")
	}
	if r.ExecID != "" {
		if err := t.startExec(ctx, p); err != nil {
			return nil, errgrpc.ToGRPC(err)
		}
		s.events.send(t.namespace, "/tasks/exec-started", &eventstypes.TaskExecStarted{
			ContainerID: t.id, ExecID: p.id, Pid: uint32(p.pid),
		})
		run.Go("shim: process", func() { t.watch(p) })
		return &api.StartResponse{Pid: uint32(p.pid)}, nil
	}
	if t.waits {
		if err := t.container.Exec(); err != nil {
			return nil, errgrpc.ToGRPC(fmt.Errorf("OCI runtime start failed: %w", err))
		}
	}
	p.started.Store(true)
	s.events.send(t.namespace, "/tasks/start", &eventstypes.TaskStart{ContainerID: t.id, Pid: uint32(p.pid)})
	return &api.StartResponse{Pid: uint32(p.pid)}, nil
}

// Delete removes what is left of a container or of a process in it.
func (s *Service) Delete(ctx context.Context, r *api.DeleteRequest) (*api.DeleteResponse, error) {
	s.changing.RLock()
	defer s.changing.RUnlock()
	t, p, err := s.process(ctx, r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	if r.ExecID != "" {
		err = t.deleteExec(p)
	} else if err = t.delete(ctx); err == nil {
		s.forget(t)
		s.events.send(t.namespace, "/tasks/delete", &eventstypes.TaskDelete{
			ContainerID: t.id, Pid: uint32(p.pid), ExitStatus: p.exit.Status, ExitedAt: timestamppb.New(p.exit.At),
		})
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &api.DeleteResponse{Pid: uint32(p.pid), ExitStatus: p.exit.Status, ExitedAt: timestamppb.New(p.exit.At)}, nil
}

// Exec prepares a further process in a container.
func (s *Service) Exec(ctx context.Context, r *api.ExecProcessRequest) (*emptypb.Empty, error) {
	s.changing.RLock()
	defer s.changing.RUnlock()
	t, err := s.get(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	if err := t.addExec(r); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	s.events.send(t.namespace, "/tasks/exec-added", &eventstypes.TaskExecAdded{ContainerID: t.id, ExecID: r.ExecID})
	return &emptypb.Empty{}, nil
}

// State says what is known of a process.
func (s *Service) State(ctx context.Context, r *api.StateRequest) (*api.StateResponse, error) {
	t, p, err := s.process(ctx, r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	res := &api.StateResponse{
		ID: r.ID, ExecID: r.ExecID, Bundle: t.bundle, Stdin: p.io.Stdin, Stdout: p.io.Stdout, Stderr: p.io.Stderr, Terminal: p.io.Terminal,
	}
	if r.ExecID != "" {
		res.ID = r.ExecID
	}
	select {
	case <-p.exited:
		res.Status, res.ExitStatus, res.ExitedAt = tasktypes.Status_STOPPED, p.exit.Status, timestamppb.New(p.exit.At)
	default:
		t.mu.Lock()
		paused := t.paused
		t.mu.Unlock()
		switch {
		case paused && r.ExecID == "":
			res.Status = tasktypes.Status_PAUSED
		case p.started.Load():
			res.Status = tasktypes.Status_RUNNING
		default:
			res.Status = tasktypes.Status_CREATED
		}
	}
	res.Pid = uint32(p.number())
	return res, nil
}

// Wait answers when a process has ended.
func (s *Service) Wait(ctx context.Context, r *api.WaitRequest) (*api.WaitResponse, error) {
	_, p, err := s.process(ctx, r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.exited:
		return &api.WaitResponse{ExitStatus: p.exit.Status, ExitedAt: timestamppb.New(p.exit.At)}, nil
	case <-ctx.Done():
		return nil, errgrpc.ToGRPC(ctx.Err())
	}
}

// Kill sends a signal.
func (s *Service) Kill(ctx context.Context, r *api.KillRequest) (*emptypb.Empty, error) {
	t, p, err := s.process(ctx, r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	if err := t.kill(p, r.Signal); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &emptypb.Empty{}, nil
}

// Pids lists the processes of a container.
func (s *Service) Pids(ctx context.Context, r *api.PidsRequest) (*api.PidsResponse, error) {
	t, err := s.get(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	pids, err := t.container.Processes()
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	res := &api.PidsResponse{}
	for _, pid := range pids {
		info := &tasktypes.ProcessInfo{Pid: uint32(pid)}
		if id := t.execOf(pid); id != "" {
			if info.Info, err = typeurl.MarshalAnyToProto(&options.ProcessDetails{ExecID: id}); err != nil {
				return nil, errgrpc.ToGRPC(err)
			}
		}
		res.Processes = append(res.Processes, info)
	}
	return res, nil
}

// Pause freezes a container.
func (s *Service) Pause(ctx context.Context, r *api.PauseRequest) (*emptypb.Empty, error) {
	return s.freeze(ctx, r.ID, true)
}

// Resume lets a frozen container go on.
func (s *Service) Resume(ctx context.Context, r *api.ResumeRequest) (*emptypb.Empty, error) {
	return s.freeze(ctx, r.ID, false)
}

func (s *Service) freeze(ctx context.Context, id string, paused bool) (*emptypb.Empty, error) {
	s.changing.RLock()
	defer s.changing.RUnlock()
	t, err := s.get(ctx, id)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if paused {
		err = t.container.Pause()
	} else {
		err = t.container.Resume()
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	t.paused = paused
	if paused {
		s.events.send(t.namespace, "/tasks/paused", &eventstypes.TaskPaused{ContainerID: id})
	} else {
		s.events.send(t.namespace, "/tasks/resumed", &eventstypes.TaskResumed{ContainerID: id})
	}
	return &emptypb.Empty{}, nil
}

// ResizePty sets the size of a terminal.
func (s *Service) ResizePty(ctx context.Context, r *api.ResizePtyRequest) (*emptypb.Empty, error) {
	_, p, err := s.process(ctx, r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	if err := p.resize(r.Width, r.Height); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &emptypb.Empty{}, nil
}

// CloseIO lets a process see the end of its input.
func (s *Service) CloseIO(ctx context.Context, r *api.CloseIORequest) (*emptypb.Empty, error) {
	_, p, err := s.process(ctx, r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	p.closeStdin()
	return &emptypb.Empty{}, nil
}

// Update changes what a container may use.
func (s *Service) Update(ctx context.Context, r *api.UpdateTaskRequest) (*emptypb.Empty, error) {
	s.changing.RLock()
	defer s.changing.RUnlock()
	t, err := s.get(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	if err := t.update(r.Resources.GetValue()); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &emptypb.Empty{}, nil
}

// Stats measures a container.
func (s *Service) Stats(ctx context.Context, r *api.StatsRequest) (*api.StatsResponse, error) {
	t, err := s.get(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	stats, err := t.stats()
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &api.StatsResponse{Stats: stats}, nil
}

// Connect names the process of this program and that of the container.
func (s *Service) Connect(ctx context.Context, r *api.ConnectRequest) (*api.ConnectResponse, error) {
	t, err := s.get(ctx, r.ID)
	if err != nil {
		return &api.ConnectResponse{ShimPid: uint32(os.Getpid())}, nil
	}
	return &api.ConnectResponse{ShimPid: uint32(os.Getpid()), TaskPid: uint32(t.init.pid)}, nil
}

// Shutdown is what containerd asks of a shim whose containers are gone; this
// one serves others.
func (s *Service) Shutdown(context.Context, *api.ShutdownRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

// recovering keeps a panic in one call from ending the containers' shim.
func recovering(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (res any, err error) {
	err = errors.New("panic in " + info.FullMethod)
	run.Panicked("shim: "+info.FullMethod, func() { res, err = method(ctx, unmarshal) })
	return res, err
}
