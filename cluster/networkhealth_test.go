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

type saying struct{ err error }

func (s *saying) Err() error { return s.err }

// TestNetworkStale: rules that were written stay: who wrote them may fail afterwards, and the
// node's pods are reached.
func TestNetworkStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, refused := &networkHealth{}, errors.New("the kernel refuses it")
		is := func(what string, ready, stale bool) {
			t.Helper()
			if (h.err() == nil) != ready || (h.stale() != nil) != stale {
				t.Errorf("%s: not ready for %v, stale for %v", what, h.err(), h.stale())
			}
		}
		proxy := &saying{refused}
		h.follow("kube-proxy", proxy)
		is("it never wrote a rule", false, false)
		proxy.err = nil
		is("it writes", true, false)
		time.Sleep(provenAfter)
		is("it has written", true, false)
		proxy.err = refused
		is("it cannot write any more", true, true)
		h.set("kube-proxy", errors.New("it has ended"))
		is("it ends, and is started again", true, true)
		h.set("kube-proxy", nil)
		proxy.err = nil
		is("it writes again", true, false)
		h.works("network")
		h.set("network", refused)
		is("no pod can be attached", false, false)
	})
}
