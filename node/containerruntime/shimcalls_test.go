package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestShimEndsNoCall: a shim that answers, and starts and ends nothing for minutes, makes the
// runtime not ready. One success says that it does not hang; calls that pods can hold up say
// nothing, however many pods there are.
func TestShimEndsNoCall(t *testing.T) {
	const sandbox, other = true, false
	call := func(method, id string, sandbox bool) shimCall {
		return shimCall{method: method, id: id, sandbox: sandbox}
	}
	for name, test := range map[string]struct {
		calls   []shimCall
		success bool // of another call, meanwhile
		gone    bool // their callers gave up, and have begun again
		hangs   bool
	}{
		"nothing":              {},
		"two sandboxes":        {calls: []shimCall{call("Create", "a", sandbox), call("Kill", "b", sandbox)}, hangs: true},
		"two, and a success":   {calls: []shimCall{call("Create", "a", sandbox), call("Kill", "b", sandbox)}, success: true},
		"one sandbox":          {calls: []shimCall{call("Create", "a", sandbox), call("Kill", "a", sandbox)}},
		"two containers":       {calls: []shimCall{call("Create", "a", other), call("Create", "b", other)}},
		"a sandbox and others": {calls: []shimCall{call("Create", "a", sandbox), call("Start", "b", other), call("Kill", "c", other)}},
		"containers, again":    {calls: []shimCall{call("Create", "a", other), call("Create", "b", other)}, gone: true},
		"tried again":          {calls: []shimCall{call("Create", "a", sandbox), call("Create", "b", sandbox)}, gone: true, hangs: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFront(Config{State: t.TempDir()}, host{})
				f.set(&ttrpc.Client{})
				<-time.After(time.Second)
				ctx, cancel := context.WithCancel(t.Context())
				defer func() { cancel(); synctest.Wait() }()
				begin := func(ctx context.Context) {
					for _, c := range test.calls {
						go func() {
							_ = f.calls.follow(ctx, c, func() error { <-ctx.Done(); return ctx.Err() })
						}()
						<-time.After(time.Millisecond)
					}
				}
				if test.gone {
					first, stop := context.WithTimeout(ctx, time.Minute)
					defer stop()
					begin(first)
					<-time.After(90 * time.Second)
				}
				begin(ctx)
				<-time.After(time.Minute)
				if test.success {
					_ = f.calls.follow(ctx, call("Delete", "c", other), func() error { return nil })
				}
				if !test.gone {
					if a, _ := f.absent(); a != nil {
						t.Error("after a minute:", a.err)
					}
					<-time.After(time.Minute)
				}
				a, reason := f.absent()
				if (a != nil) != test.hangs {
					t.Fatal(a)
				}
				if a == nil {
					return
				}
				if reason != "ShimNotResponding" || !strings.Contains(a.err.Error(), "Create of sandbox a is under way since 2000-01-01T00:0") {
					t.Error(reason, a.err)
				}
				c := &cri.RuntimeCondition{Type: cri.RuntimeReady, Status: true}
				if _, err := f.intercept(ctx, nil, nil, func(context.Context, any) (any, error) {
					return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{c}}}, nil
				}); err != nil || c.Status || c.Reason != reason {
					t.Error(c, err)
				}
				f.set(nil)
				f.set(&ttrpc.Client{})
				if a, _ := f.absent(); a != nil {
					t.Error("of the next shim:", a.err)
				}
			})
		})
	}
}

// TestShimCallsEnd: an error is no success, and no call stays known.
func TestShimCallsEnd(t *testing.T) {
	var s shimCalls
	_ = s.follow(t.Context(), shimCall{method: "Kill", id: "a", sandbox: true}, func() error { return errors.New("no") })
	if len(s.under) != 0 || !s.succeeded.IsZero() || !s.gaveUp.IsZero() {
		t.Error(s.under, s.succeeded, s.gaveUp)
	}
}

// TestCallsThatAreASign: those of a sandbox are, for the first process alone; those of another
// container are not, whatever it is annotated with.
func TestCallsThatAreASign(t *testing.T) {
	for spec, want := range map[string]bool{
		`{"annotations": {"io.kubernetes.cri.container-type": "sandbox"}}`:   true,
		`{"annotations": {"io.kubernetes.cri.container-type": "container"}}`: false,
		`{"annotations": {"sandbox": "sandbox"}}`:                            false,
		``: false,
	} {
		f := newFront(Config{State: t.TempDir()}, host{})
		k := &task{taskKey: taskKey{"k8s.io", "a"}, front: f, sandbox: ofSandbox([]byte(spec))}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // there is no shim
		if err := k.start(ctx, "added"); err == nil || !f.calls.gaveUp.IsZero() {
			t.Errorf("%s: a process that is added: %v", spec, err)
		}
		for method, call := range map[string]func() error{
			"Create": func() error { return k.create(ctx, runtime.CreateOpts{}) },
			"Start":  func() error { return k.start(ctx, "") },
			"Kill":   func() error { return k.kill(ctx, "", 9, true) },
			"Delete": func() error { _, err := k.delete(ctx, ""); return err },
		} {
			f.calls.gaveUp = time.Time{}
			if err := call(); err == nil || f.calls.gaveUp.IsZero() == want {
				t.Errorf("%s of %s: %v, given up %v", method, spec, err, f.calls.gaveUp)
			}
		}
	}
}

// TestManagerKnowsSandboxes: the manager of tasks tells the calls of sandboxes from others.
func TestManagerKnowsSandboxes(t *testing.T) {
	for kind, want := range map[string]bool{"sandbox": true, "container": false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFront(Config{State: t.TempDir()}, host{})
			m := &taskManager{front: f, runtimePath: "ours", bundles: t.TempDir(), log: slog.New(slog.DiscardHandler), tasks: map[taskKey]*task{}}
			spec := &ptypes.Any{Value: fmt.Appendf(nil, `{"annotations": {"io.kubernetes.cri.container-type": %q}}`, kind)}
			ctx, cancel := context.WithTimeout(namespaces.WithNamespace(t.Context(), "k8s.io"), time.Minute)
			defer cancel()
			if _, err := m.Create(ctx, "a", runtime.CreateOpts{Runtime: "ours", Spec: spec}); err == nil || f.calls.gaveUp.IsZero() == want {
				t.Errorf("Create of a %s: %v, given up %v", kind, err, f.calls.gaveUp)
			}
		})
	}
}

// TestCallTakesTooLong: that a caller's time is over is known as that to whoever asked.
func TestCallTakesTooLong(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	f := newFront(Config{State: t.TempDir()}, host{})
	client := ttrpc.NewClient(ours)
	defer client.Close()
	f.set(client)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	k := &task{taskKey: taskKey{"k8s.io", "a"}, front: f}
	if err := k.start(ctx, "added"); !errdefs.IsDeadlineExceeded(err) {
		t.Errorf("%v: %[1]T", err)
	}
}
