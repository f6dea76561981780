package aggregation

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/run"
)

// Run keeps the APIServices: it registers the cluster's own groups, and looks
// after each server that serves others. It returns when ctx ends.
func (a *Aggregator) Run(ctx context.Context) {
	defer a.Close()
	probes := map[string]context.CancelFunc{}
	var wg run.Group
	defer wg.Wait()
	defer func() {
		for _, end := range probes {
			end()
		}
	}()
	for ctx.Err() == nil {
		a.watch(ctx, func() {
			if err := a.register(ctx); err != nil && ctx.Err() == nil {
				slog.WarnContext(ctx, "register API groups", "err", err)
			}
			wanted := map[string]bool{}
			watchcache.Each(a.services, "", func(s *apiregistrationv1.APIService) bool {
				if s.Spec.Service != nil {
					wanted[s.Name] = true
				}
				return true
			})
			for name, end := range probes {
				if !wanted[name] {
					end()
					delete(probes, name)
					a.forget(name)
				}
			}
			for name := range wanted {
				if probes[name] != nil {
					continue
				}
				own, end := context.WithCancel(ctx)
				probes[name] = end
				wg.Loop(own, "aggregation: probe", func(own context.Context) { a.look(own, name) })
			}
			a.publish()
		})
	}
}

// watch calls do now and after each change of an APIService.
func (a *Aggregator) watch(ctx context.Context, do func()) {
	defer contain(ctx, "aggregation")
	w, err := a.services.Watch(ctx, watchcache.WatchQuery{ResourceVersion: "0"})
	if err != nil {
		pause(ctx, time.Second)
		return
	}
	defer w.Stop()
	var buf []watchcache.Delivery
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-a.trigger:
			continue
		case <-w.C():
		}
		if buf, err = w.Poll(buf[:0]); err != nil {
			return // it fell behind: begin anew
		}
	}
}

// contain keeps a panic from ending the process.
func contain(ctx context.Context, what string) {
	if p := recover(); p != nil {
		slog.ErrorContext(ctx, "panic", "in", what, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		pause(ctx, time.Second)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
