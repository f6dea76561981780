package containerruntime

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"knarr/internal/run"
	"knarr/internal/unixsocket"
)

// Names that node/containerruntime/shim has too, which is a program of its own.
const (
	shimSocketName   = "shim.sock"
	shimFrontName    = "tasks.sock"
	shimProgramName  = "shim.program"
	shimLogName      = "shim.log"
	pauseRootName    = "pause-root"
	pauseProfileName = "pause-seccomp.json"
	bundlesName      = "tasks"
	savedName        = "knarr-shim.json"
)

// A front passes calls on to the one program that runs the containers, which it
// starts, and starts again should that end: the callers learn nothing of it, and
// the containers go on.
type front struct {
	state, socket, program string
	log                    *slog.Logger
	timeouts               timeouts

	process *shimProcess // of the shim that keep started or found last; nil where it is not known

	mu     sync.Mutex
	client *ttrpc.Client
	ready  chan struct{} // closed while there is a client
	gone   absence
	hangs  *absence // of the client's shim

	calls shimCalls
	ends  *prometheus.CounterVec // of shims, by reason
}

func newFront(c Config, h host) *front {
	return &front{
		state: c.State, socket: c.Socket(), program: h.shim, log: c.Log, timeouts: cmp.Or(c.timeouts, shimTimeouts), ready: make(chan struct{}),
		ends: cmp.Or(c.shimEnds, newShimEnds()),
		gone: absence{since: time.Now(), err: errors.New("the shim starts")},
	}
}

// serve keeps the program until ctx ends, and answers containerd on a socket: containers
// that knarr made before it had a manager of tasks of its own name that as their shim's.
// What it returns waits for the end.
func (f *front) serve(ctx context.Context) (wait func(), err error) {
	server, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser()))
	if err != nil {
		return nil, err
	}
	api.RegisterTTRPCTaskService(server, f)
	listener, err := unixsocket.Listen(filepath.Join(f.state, shimFrontName), socketMode)
	if err != nil {
		return nil, err
	}
	var wg run.Group
	wg.Loop(ctx, "container runtime: shim", f.keep)
	wg.Go("container runtime: serve tasks", func() {
		if err := server.Serve(context.WithoutCancel(ctx), listener); err != nil && ctx.Err() == nil {
			f.log.Error("serve tasks", "err", err)
		}
	})
	// Connections stay open, and calls unanswered, until this process ends: a containerd
	// that loses one, though it is ending itself, takes the container for dead and has it
	// killed.
	return func() {
		_ = listener.Close()
		wg.Wait()
	}, nil
}

const (
	// shimAgain is how long to wait before the shim is started again,
	shimAgain = 100 * time.Millisecond
	// and shimAgainMost where it cannot be started.
	shimAgainMost = 5 * time.Second
)

// keep stays connected to the shim.
func (f *front) keep(ctx context.Context) {
	again, logged := shimAgain, time.Time{}
	for ctx.Err() == nil {
		conn, err := f.connect(ctx)
		if err != nil {
			if ctx.Err() == nil {
				f.missing(err)
				if time.Since(logged) > time.Minute {
					f.log.Error("start the shim", "err", err, "log", f.logPath())
					logged = time.Now()
				}
			}
			again = min(2*again, shimAgainMost)
		} else {
			again = shimAgain
			closed := make(chan struct{})
			client := ttrpc.NewClient(conn, ttrpc.WithOnClose(sync.OnceFunc(func() { close(closed) })))
			f.set(client)
			reason := f.attend(ctx, client, closed)
			f.set(nil)
			client.Close()
			if ctx.Err() != nil {
				return
			}
			f.ends.WithLabelValues(reason).Inc()
			f.log.Warn("the shim has ended, another one takes up its containers", append(f.lastWords(), "log", f.logPath())...)
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

func (f *front) set(client *ttrpc.Client) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if client == nil {
		f.ready = make(chan struct{})
		f.gone = absence{since: time.Now(), err: errShimEnded}
	} else {
		f.calls.renew()
		close(f.ready)
	}
	f.client = client
}

// A call passes on one method. What may be done twice is tried again on the next
// shim if the first one ends meanwhile.
func call[Req, Res any](ctx context.Context, f *front, twice bool, req *Req, method func(api.TTRPCTaskService, context.Context, *Req) (*Res, error)) (*Res, error) {
	for {
		f.mu.Lock()
		client, ready := f.client, f.ready
		f.mu.Unlock()
		if client == nil {
			select {
			case <-ready:
				continue
			case <-ctx.Done():
				return nil, status.FromContextError(ctx.Err()).Err()
			}
		}
		res, err := method(api.NewTTRPCTaskClient(client), ctx, req)
		switch {
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
			// As ctx has it, callers could not tell it from an error of the container's.
			return nil, status.FromContextError(err).Err()
		case !errors.Is(err, ttrpc.ErrClosed):
			return res, err
		}
		if !twice {
			return nil, status.Error(codes.Unavailable, errShimEnded.Error())
		}
		select {
		case <-time.After(time.Millisecond): // until it is noticed
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

func (f *front) State(ctx context.Context, r *api.StateRequest) (*api.StateResponse, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.State)
}

func (f *front) Create(ctx context.Context, r *api.CreateTaskRequest) (*api.CreateTaskResponse, error) {
	return call(ctx, f, false, r, api.TTRPCTaskService.Create)
}

func (f *front) Start(ctx context.Context, r *api.StartRequest) (*api.StartResponse, error) {
	return call(ctx, f, false, r, api.TTRPCTaskService.Start)
}

func (f *front) Delete(ctx context.Context, r *api.DeleteRequest) (*api.DeleteResponse, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.Delete)
}

func (f *front) Pids(ctx context.Context, r *api.PidsRequest) (*api.PidsResponse, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.Pids)
}

func (f *front) Pause(ctx context.Context, r *api.PauseRequest) (*emptypb.Empty, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.Pause)
}

func (f *front) Resume(ctx context.Context, r *api.ResumeRequest) (*emptypb.Empty, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.Resume)
}

func (f *front) Checkpoint(ctx context.Context, r *api.CheckpointTaskRequest) (*emptypb.Empty, error) {
	return call(ctx, f, false, r, api.TTRPCTaskService.Checkpoint)
}

func (f *front) Kill(ctx context.Context, r *api.KillRequest) (*emptypb.Empty, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.Kill)
}

func (f *front) Exec(ctx context.Context, r *api.ExecProcessRequest) (*emptypb.Empty, error) {
	return call(ctx, f, false, r, api.TTRPCTaskService.Exec)
}

func (f *front) ResizePty(ctx context.Context, r *api.ResizePtyRequest) (*emptypb.Empty, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.ResizePty)
}

func (f *front) CloseIO(ctx context.Context, r *api.CloseIORequest) (*emptypb.Empty, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.CloseIO)
}

func (f *front) Update(ctx context.Context, r *api.UpdateTaskRequest) (*emptypb.Empty, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.Update)
}

func (f *front) Wait(ctx context.Context, r *api.WaitRequest) (*api.WaitResponse, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.Wait)
}

func (f *front) Stats(ctx context.Context, r *api.StatsRequest) (*api.StatsResponse, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.Stats)
}

func (f *front) Connect(ctx context.Context, r *api.ConnectRequest) (*api.ConnectResponse, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.Connect)
}

func (f *front) Shutdown(ctx context.Context, r *api.ShutdownRequest) (*emptypb.Empty, error) {
	return call(ctx, f, true, r, api.TTRPCTaskService.Shutdown)
}
