package containerruntime

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/ttrpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestShimEndsNoCall: a shim that answers, and starts and ends nothing for minutes, makes the
// runtime not ready. One success, or calls that one container holds up, say that it does not
// hang.
func TestShimEndsNoCall(t *testing.T) {
	for name, test := range map[string]struct {
		calls   []shimCall
		success bool // of another call, meanwhile
		gone    bool // their callers gave up, and have begun again
		hangs   bool
	}{
		"nothing":            {},
		"two containers":     {calls: []shimCall{{method: "Create", id: "a"}, {method: "Kill", id: "b"}}, hangs: true},
		"two, and a success": {calls: []shimCall{{method: "Create", id: "a"}, {method: "Kill", id: "b"}}, success: true},
		"one container":      {calls: []shimCall{{method: "Create", id: "a"}, {method: "Kill", id: "a"}}},
		"added processes":    {calls: []shimCall{{method: "Start", id: "a", own: true}, {method: "Start", id: "b", own: true}}},
		"tried again":        {calls: []shimCall{{method: "Create", id: "a"}, {method: "Create", id: "b"}}, gone: true, hangs: true},
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
							_, _ = follow(ctx, &f.calls, c, func() (*int, error) { <-ctx.Done(); return nil, ctx.Err() })
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
					_, _ = follow(ctx, &f.calls, shimCall{method: "Delete", id: "c"}, func() (*int, error) { return nil, nil })
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
				if reason != "ShimNotResponding" || !strings.Contains(a.err.Error(), "Create of container a is under way since 2000-01-01T00:0") {
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
	_, _ = follow(t.Context(), &s, shimCall{method: "Kill", id: "a"}, func() (*int, error) { return nil, errors.New("no") })
	if len(s.under) != 0 || !s.succeeded.IsZero() || !s.gaveUp.IsZero() {
		t.Error(s.under, s.succeeded, s.gaveUp)
	}
}
