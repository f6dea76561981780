package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/ttrpc"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// Timeouts are those of starting a shim and of asking it whether it still answers.
type timeouts struct {
	start  time.Duration // until it can be connected to
	every  time.Duration // between two questions
	answer time.Duration // until it must have answered, before it is ended
	end    time.Duration // until it must have ended by itself, before it is killed
	takeUp time.Duration // until it must have said how the containers of before are
}

// shimTimeouts: a shim answers within a millisecond, on a machine that swaps within seconds.
// Ending one that is slow costs nothing but time, for the next one takes up its containers.
// The time for containers of before has room for one that must be ended, and for the next.
var shimTimeouts = timeouts{start: shimStart, every: 10 * time.Second, answer: shimMissed, end: 10 * time.Second, takeUp: 2 * time.Minute}

// The reasons of a shim's end.
const (
	shimEnded    = "ended"          // by itself, or by somebody else
	shimSilent   = "not_responding" // ended since it did not answer
	shimOutdated = "not_replaced"   // ended since it did not become the version that is wanted
)

func newShimEnds() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "knarr_shim_ends_total", Help: "Ends of the process that runs the node's containers, by reason.",
	}, []string{"reason"})
}

// attend stays with a shim until it has ended or ctx is done. One that no longer answers,
// while its socket is open, it ends: by SIGQUIT, which leaves in the log what each goroutine
// was at. It asks at once: one that was found running may hang already. One that answers and
// ends no call is left to whoever looks after the node: what it waits for may be the kernel's,
// and the next one would wait for it too. The reason is why it ended.
func (f *front) attend(ctx context.Context, client *ttrpc.Client, closed <-chan struct{}) (reason string) {
	ask := time.NewTicker(f.timeouts.every)
	defer ask.Stop()
	defer f.hang(nil)
	reason, stuck := shimEnded, false
	for {
		if asked := time.Now(); !f.answers(ctx, client) && ctx.Err() == nil {
			reason = shimSilent
			f.end(ctx, f.process, closed, &absence{since: asked, err: fmt.Errorf("the shim has not answered within %s", f.timeouts.answer)})
		}
		if a := f.calls.hung(time.Now()); a == nil {
			stuck = false
		} else if !stuck {
			stuck = true
			f.log.Error("the shim hangs in part", "err", a.err)
		}
		select {
		case <-closed:
			return reason
		case <-ctx.Done():
			return reason
		case <-ask.C:
		}
	}
}

// answers asks the shim about a container that nobody has. An error is an answer.
func (f *front) answers(ctx context.Context, client *ttrpc.Client) bool {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, "k8s.io"), f.timeouts.answer)
	defer cancel()
	_, _ = api.NewTTRPCTaskClient(client).State(ctx, &api.StateRequest{ID: "-"})
	return ctx.Err() == nil
}

// answersNow asks the shim that is there, if any, for as long as ctx lasts.
func (f *front) answersNow(ctx context.Context) bool {
	f.mu.Lock()
	client := f.client
	f.mu.Unlock()
	if client == nil {
		return false
	}
	_, err := api.NewTTRPCTaskClient(client).State(namespaces.WithNamespace(ctx, "k8s.io"), &api.StateRequest{ID: "-"})
	return ctx.Err() == nil && !errors.Is(err, ttrpc.ErrClosed)
}

// end ends a shim that hangs. A process that waits in the kernel for what never comes ends
// only then: it is waited for, and the runtime is not ready meanwhile.
func (f *front) end(ctx context.Context, p *shimProcess, closed <-chan struct{}, why *absence) {
	f.hang(why)
	for _, sig := range []unix.Signal{unix.SIGQUIT, unix.SIGKILL} {
		err := errors.New("its process is not known")
		if p != nil {
			err = p.signal(sig)
		}
		if err != nil {
			f.log.Error("end the shim, which hangs", "err", err)
			break
		}
		f.log.Error("the shim hangs and is ended", "err", why.err, "pid", p.pid, "signal", unix.SignalName(sig), "log", f.logPath())
		select {
		case <-closed:
			return
		case <-ctx.Done():
			return
		case <-time.After(f.timeouts.end):
		}
	}
	f.hang(&absence{since: why.since, err: fmt.Errorf("%w, and does not end", why.err)})
	select {
	case <-closed:
	case <-ctx.Done():
	}
}

// hang notes since when the shim hangs; nil for not any more.
func (f *front) hang(a *absence) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hangs = a
}
