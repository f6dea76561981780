package containerruntime

import (
	"context"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
)

// A task is a container in the shim as containerd sees it. It implements runtime.Task;
// errors are those of errdefs.
type task struct {
	taskKey
	bundle string
	front  *front
	pid    atomic.Uint32 // of its first process; 0 until it is made
	// sandbox says that it is a pod's sandbox.
	sandbox bool
}

// An addedProcess is one that was added to a container. It implements runtime.ExecProcess.
type addedProcess struct {
	task *task
	id   string
}

// follow makes a call that has the shim start or end the container, or a process that was
// added to it: that one's calls a pod can hold up, whatever its container is.
func (t *task) follow(ctx context.Context, method, exec string, call func() error) error {
	return t.front.calls.follow(ctx, shimCall{method: method, id: t.id, sandbox: t.sandbox && exec == ""}, call)
}

// create has the shim prepare the container.
func (t *task) create(ctx context.Context, opts runtime.CreateOpts) error {
	options := opts.TaskOptions
	if options == nil || options.GetValue() == nil {
		options = opts.RuntimeOptions
	}
	r := &api.CreateTaskRequest{
		ID: t.id, Bundle: t.bundle, Checkpoint: opts.Checkpoint, Options: typeurl.MarshalProto(options),
		Stdin: opts.IO.Stdin, Stdout: opts.IO.Stdout, Stderr: opts.IO.Stderr, Terminal: opts.IO.Terminal,
	}
	for _, m := range opts.Rootfs {
		r.Rootfs = append(r.Rootfs, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return errgrpc.ToNative(t.follow(ctx, "Create", "", func() error {
		res, err := t.front.Create(ctx, r)
		t.pid.Store(res.GetPid())
		return err
	}))
}

// The calls below are for the container's first process where exec is "".

func (t *task) start(ctx context.Context, exec string) error {
	return errgrpc.ToNative(t.follow(ctx, "Start", exec, func() error {
		_, err := t.front.Start(ctx, &api.StartRequest{ID: t.id, ExecID: exec})
		return err
	}))
}

func (t *task) kill(ctx context.Context, exec string, signal uint32, all bool) error {
	return errgrpc.ToNative(t.follow(ctx, "Kill", exec, func() error {
		_, err := t.front.Kill(ctx, &api.KillRequest{ID: t.id, ExecID: exec, Signal: signal, All: all})
		return err
	}))
}

func (t *task) resize(ctx context.Context, exec string, size runtime.ConsoleSize) error {
	_, err := t.front.ResizePty(ctx, &api.ResizePtyRequest{ID: t.id, ExecID: exec, Width: size.Width, Height: size.Height})
	return errgrpc.ToNative(err)
}

func (t *task) closeIO(ctx context.Context, exec string) error {
	_, err := t.front.CloseIO(ctx, &api.CloseIORequest{ID: t.id, ExecID: exec, Stdin: true})
	return errgrpc.ToNative(err)
}

func (t *task) state(ctx context.Context, exec string) (runtime.State, error) {
	res, err := t.front.State(ctx, &api.StateRequest{ID: t.id, ExecID: exec})
	if err != nil {
		return runtime.State{}, errgrpc.ToNative(err)
	}
	return runtime.State{
		Status: statuses[res.Status], Pid: res.Pid, ExitStatus: res.ExitStatus, ExitedAt: protobuf.FromTimestamp(res.ExitedAt),
		Stdin: res.Stdin, Stdout: res.Stdout, Stderr: res.Stderr, Terminal: res.Terminal,
	}, nil
}

var statuses = map[tasktypes.Status]runtime.Status{
	tasktypes.Status_CREATED: runtime.CreatedStatus,
	tasktypes.Status_RUNNING: runtime.RunningStatus,
	tasktypes.Status_STOPPED: runtime.StoppedStatus,
	tasktypes.Status_PAUSED:  runtime.PausedStatus,
	tasktypes.Status_PAUSING: runtime.PausingStatus,
}

func (t *task) wait(ctx context.Context, exec string, pid uint32) (*runtime.Exit, error) {
	res, err := t.front.Wait(ctx, &api.WaitRequest{ID: t.id, ExecID: exec})
	if err != nil {
		return nil, errgrpc.ToNative(err)
	}
	return &runtime.Exit{Pid: pid, Status: res.ExitStatus, Timestamp: protobuf.FromTimestamp(res.ExitedAt)}, nil
}

func (t *task) delete(ctx context.Context, exec string) (*runtime.Exit, error) {
	var res *api.DeleteResponse
	err := t.follow(ctx, "Delete", exec, func() (err error) {
		res, err = t.front.Delete(ctx, &api.DeleteRequest{ID: t.id, ExecID: exec})
		return err
	})
	if err != nil {
		return nil, errgrpc.ToNative(err)
	}
	return &runtime.Exit{Pid: res.Pid, Status: res.ExitStatus, Timestamp: protobuf.FromTimestamp(res.ExitedAt)}, nil
}

func (t *task) ID() string                                       { return t.id }
func (t *task) Namespace() string                                { return t.namespace }
func (t *task) PID(context.Context) (uint32, error)              { return t.pid.Load(), nil }
func (t *task) State(ctx context.Context) (runtime.State, error) { return t.state(ctx, "") }
func (t *task) Start(ctx context.Context) error                  { return t.start(ctx, "") }
func (t *task) Kill(ctx context.Context, signal uint32, all bool) error {
	return t.kill(ctx, "", signal, all)
}
func (t *task) ResizePty(ctx context.Context, s runtime.ConsoleSize) error {
	return t.resize(ctx, "", s)
}
func (t *task) CloseIO(ctx context.Context) error               { return t.closeIO(ctx, "") }
func (t *task) Wait(ctx context.Context) (*runtime.Exit, error) { return t.wait(ctx, "", t.pid.Load()) }

// Pause freezes the container.
func (t *task) Pause(ctx context.Context) error {
	_, err := t.front.Pause(ctx, &api.PauseRequest{ID: t.id})
	return errgrpc.ToNative(err)
}

// Resume lets it go on.
func (t *task) Resume(ctx context.Context) error {
	_, err := t.front.Resume(ctx, &api.ResumeRequest{ID: t.id})
	return errgrpc.ToNative(err)
}

// Exec prepares a further process in the container.
func (t *task) Exec(ctx context.Context, id string, opts runtime.ExecOpts) (runtime.ExecProcess, error) {
	if err := identifiers.Validate(id); err != nil {
		return nil, err
	}
	_, err := t.front.Exec(ctx, &api.ExecProcessRequest{
		ID: t.id, ExecID: id, Spec: opts.Spec,
		Stdin: opts.IO.Stdin, Stdout: opts.IO.Stdout, Stderr: opts.IO.Stderr, Terminal: opts.IO.Terminal,
	})
	if err != nil {
		return nil, errgrpc.ToNative(err)
	}
	return &addedProcess{t, id}, nil
}

// Process finds one that Exec prepared.
func (t *task) Process(ctx context.Context, id string) (runtime.ExecProcess, error) {
	if _, err := t.state(ctx, id); err != nil {
		return nil, err
	}
	return &addedProcess{t, id}, nil
}

// Pids lists the processes of the container.
func (t *task) Pids(ctx context.Context) ([]runtime.ProcessInfo, error) {
	res, err := t.front.Pids(ctx, &api.PidsRequest{ID: t.id})
	if err != nil {
		return nil, errgrpc.ToNative(err)
	}
	var list []runtime.ProcessInfo
	for _, p := range res.Processes {
		list = append(list, runtime.ProcessInfo{Pid: p.Pid, Info: p.Info})
	}
	return list, nil
}

// Checkpoint writes the container's state to a directory.
func (t *task) Checkpoint(ctx context.Context, path string, options *ptypes.Any) error {
	_, err := t.front.Checkpoint(ctx, &api.CheckpointTaskRequest{ID: t.id, Path: path, Options: options})
	return errgrpc.ToNative(err)
}

// Update changes what the container may use.
func (t *task) Update(ctx context.Context, resources *ptypes.Any, annotations map[string]string) error {
	_, err := t.front.Update(ctx, &api.UpdateTaskRequest{ID: t.id, Resources: resources, Annotations: annotations})
	return errgrpc.ToNative(err)
}

// Stats measures the container.
func (t *task) Stats(ctx context.Context) (*ptypes.Any, error) {
	res, err := t.front.Stats(ctx, &api.StatsRequest{ID: t.id})
	if err != nil {
		return nil, errgrpc.ToNative(err)
	}
	return res.Stats, nil
}

func (p *addedProcess) ID() string { return p.id }
func (p *addedProcess) State(ctx context.Context) (runtime.State, error) {
	return p.task.state(ctx, p.id)
}
func (p *addedProcess) Start(ctx context.Context) error   { return p.task.start(ctx, p.id) }
func (p *addedProcess) CloseIO(ctx context.Context) error { return p.task.closeIO(ctx, p.id) }
func (p *addedProcess) Wait(ctx context.Context) (*runtime.Exit, error) {
	return p.task.wait(ctx, p.id, 0)
}
func (p *addedProcess) Delete(ctx context.Context) (*runtime.Exit, error) {
	return p.task.delete(ctx, p.id)
}

// Kill signals the process, never others.
func (p *addedProcess) Kill(ctx context.Context, signal uint32, _ bool) error {
	return p.task.kill(ctx, p.id, signal, false)
}

func (p *addedProcess) ResizePty(ctx context.Context, s runtime.ConsoleSize) error {
	return p.task.resize(ctx, p.id, s)
}
