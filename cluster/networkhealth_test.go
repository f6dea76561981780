package cluster

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestNetworkHealth: a component that cannot start is what is wrong until it
// has run for a while.
func TestNetworkHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := &networkHealth{}
		var works atomic.Bool
		c := h.watched(component{"kube-proxy", func(ctx context.Context) error {
			if !works.Load() {
				return errors.New("make table: socket: protocol not supported")
			}
			<-ctx.Done()
			return ctx.Err()
		}})
		ended := make(chan struct{})
		go func() { supervise(ctx, c); close(ended) }()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if err := h.err(); err == nil || err.Error() != "kube-proxy: make table: socket: protocol not supported" {
			t.Errorf("a component that cannot start: %v", err)
		}
		h.set("pod network", errors.New("write table: no\nmake link: no"))
		if err := h.err(); err == nil || err.Error() != "kube-proxy: make table: socket: protocol not supported; pod network: write table: no; make link: no" {
			t.Errorf("two causes in one line: %v", err)
		}
		h.set("pod network", nil)
		works.Store(true)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if err := h.err(); err != nil {
			t.Errorf("a component that runs: %v", err)
		}
		cancel()
		<-ended
		if err := h.err(); err != nil {
			t.Errorf("after the end: %v", err)
		}
	})
}
