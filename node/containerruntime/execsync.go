package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/run"
)

// maxExecOutput is how much is kept of either output of a command that a probe
// or a hook runs. containerd keeps 16 MiB of each for as long as the command
// runs, and a pod decides how many of its containers have such commands and what
// they write: a single pod could take all memory of this process. The kubelet
// reports 10 KiB at most.
const maxExecOutput = 64 << 10

// execTime bounds what is done after a command has ended.
const execTime = 10 * time.Second

const (
	// execBegin is how much later than after its own time a command may start. The
	// kubelet waits for another second.
	execBegin = time.Second
	// execAsk bounds the question whether the shim answers.
	execAsk = 500 * time.Millisecond
)

// errShimSilent is that a command could not be started, which says nothing of its container.
var errShimSilent = errors.New("the shim does not answer")

// A firstBytes keeps the first bytes that are written to it, and takes the rest.
type firstBytes struct{ kept []byte }

func (b *firstBytes) Write(p []byte) (int, error) {
	b.kept = append(b.kept, p[:min(len(p), maxExecOutput-len(b.kept))]...)
	return len(p), nil
}

// An executor runs commands in containers to their end in containerd's place.
type executor struct {
	client       *containerd.Client
	images       images.Store
	imageService cri.ImageServiceClient
	dir          string                       // of the pipes
	pause        atomic.Pointer[pauseProfile] // nil until the sandbox image is in its place
	lists        *podLists
	// answers asks the shim whether it does.
	answers func(context.Context) bool
}

func newExecutor(c Config, conn *grpc.ClientConn, f *front) (*executor, error) {
	client, err := connect(conn)
	if err != nil {
		return nil, fmt.Errorf("connect to the tasks: %w", err)
	}
	return &executor{client: client, images: client.ImageService(), imageService: cri.NewImageServiceClient(conn), dir: filepath.Join(c.State, "exec"), lists: &podLists{runtime: cri.NewRuntimeServiceClient(conn)}, answers: f.answersNow}, nil
}

// intercept answers ExecSync and lists of a pod's sandboxes and containers, and narrows what
// a sandbox may do. Where there is no running task of the container containerd is asked,
// whose own error it then is.
func (e *executor) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if sandbox, ok := req.(*cri.RunPodSandboxRequest); ok {
		e.narrow(ctx, sandbox)
	}
	if container, ok := req.(*cri.CreateContainerRequest); ok {
		if err := e.refuseRestore(ctx, container); err != nil {
			return nil, err
		}
	}
	r, ok := req.(*cri.ExecSyncRequest)
	if !ok {
		return e.lists.intercept(ctx, req, next)
	}
	ctx = namespaces.WithNamespace(ctx, imageNamespace)
	begin, cancel := beginning(ctx, r)
	defer cancel()
	container, err := e.client.LoadContainer(begin, r.ContainerId)
	var task containerd.Task
	if err == nil {
		task, err = container.Task(begin, nil)
	}
	if err != nil && !over(begin, err) {
		return next(ctx, req)
	}
	var res *cri.ExecSyncResponse
	if err == nil {
		res, err = e.run(ctx, begin, container, task, r)
	} else {
		err = e.late(ctx, begin, err)
	}
	switch {
	case err == nil:
		return res, nil
	case errors.Is(err, errShimSilent):
		return nil, status.Errorf(codes.Unavailable, "failed to exec in container: %v", err)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, status.Errorf(codes.DeadlineExceeded, "failed to exec in container: %v", err)
	}
	return nil, status.Errorf(codes.Unknown, "failed to exec in container: %v", err)
}

// beginning bounds what comes before the start of a command, which has no bound if the
// command has none.
func beginning(ctx context.Context, r *cri.ExecSyncRequest) (context.Context, context.CancelFunc) {
	if r.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(r.Timeout)*time.Second+execBegin)
}

// over says whether err is that no time is left. Whoever answers may see the end of begin
// before it is seen here.
func over(begin context.Context, err error) bool {
	return begin.Err() != nil || errdefs.IsDeadlineExceeded(err) || errdefs.IsCanceled(err)
}

// late gives the error of a command that was not started as the one that callers can tell
// from that of a command which does not end. A shim that answers others has a container that
// cannot start a process, such as one that has used up its memory: that is for the container,
// and not for the node, to answer for.
func (e *executor) late(ctx, begin context.Context, err error) error {
	if !over(begin, err) || ctx.Err() != nil {
		return err
	}
	asked, cancel := context.WithTimeout(ctx, execAsk)
	defer cancel()
	if e.answers(asked) {
		return fmt.Errorf("the command was not started: %w", context.DeadlineExceeded)
	}
	return fmt.Errorf("%w: %w", errShimSilent, err)
}

// run runs a command; what comes before its start ends with begin.
func (e *executor) run(ctx, begin context.Context, container containerd.Container, task containerd.Task, r *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	spec, err := container.Spec(begin)
	if err != nil {
		return nil, e.late(ctx, begin, fmt.Errorf("failed to get container spec: %w", err))
	}
	process := spec.Process
	process.Terminal, process.Args, process.CommandLine = false, r.Cmd, ""
	var stdout, stderr firstBytes
	id := uuid.NewString()
	p, err := task.Exec(begin, id, process, cio.NewCreator(cio.WithFIFODir(e.dir), cio.WithStreams(nil, &stdout, &stderr)))
	if err != nil {
		return nil, e.late(ctx, begin, fmt.Errorf("failed to create exec %q: %w", id, err))
	}
	code, err := e.await(ctx, begin, p, time.Duration(r.Timeout)*time.Second)
	if errors.Is(err, errShimSilent) { // nor would it answer this
		run.Go("container runtime: exec", func() { _ = end(context.WithoutCancel(ctx), p) })
		return nil, err
	}
	if derr := end(context.WithoutCancel(ctx), p); derr != nil && err == nil {
		err = fmt.Errorf("failed to delete exec %q: %w", id, derr)
	}
	if err != nil {
		return nil, err
	}
	return &cri.ExecSyncResponse{Stdout: stdout.kept, Stderr: stderr.kept, ExitCode: int32(code)}, nil
}

// end deletes a process and closes its pipes. While a child of it holds its
// outputs the shim waits as long as it may, and has closed them afterwards.
func end(ctx context.Context, p containerd.Process) (err error) {
	for _, most := range []time.Duration{time.Second, execTime} {
		limited, cancel := context.WithTimeout(ctx, most)
		_, err = p.Delete(limited, containerd.WithProcessKill)
		cancel()
		if errdefs.IsNotFound(err) {
			err = nil
		}
		if err == nil {
			break
		}
	}
	p.IO().Cancel()
	_ = p.IO().Close() // closed already where the process was deleted at once
	return err
}

// await starts a process before begin ends, and waits for its end and its outputs.
func (e *executor) await(ctx, begin context.Context, p containerd.Process, most time.Duration) (code uint32, err error) {
	whole, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, err := p.Wait(whole)
	if err != nil {
		return 0, fmt.Errorf("failed to wait for process %q: %w", p.ID(), err)
	}
	if err := p.Start(begin); err != nil {
		return 0, e.late(ctx, begin, fmt.Errorf("failed to start exec %q: %w", p.ID(), err))
	}
	limited := ctx
	if most > 0 {
		var stop context.CancelFunc
		limited, stop = context.WithTimeout(ctx, most)
		defer stop()
	}
	select {
	case <-limited.Done():
		killing, stop := context.WithTimeout(context.WithoutCancel(ctx), execTime)
		defer stop()
		if err := p.Kill(killing, syscall.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
			return 0, fmt.Errorf("failed to kill exec %q: %w", p.ID(), err)
		}
		return 0, fmt.Errorf("timeout %v exceeded: %w", most, limited.Err())
	case exit := <-ended:
		code, _, err := exit.Result()
		if err != nil {
			return 0, fmt.Errorf("failed while waiting for exec %q: %w", p.ID(), err)
		}
		written := make(chan struct{})
		run.Go("container runtime: exec output", func() {
			defer close(written)
			p.IO().Wait()
		})
		select {
		case <-written:
			return code, nil
		case <-limited.Done(): // a child of it holds the outputs
			return 0, fmt.Errorf("timeout %v exceeded: %w", most, limited.Err())
		}
	}
}
