package cluster

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"knarr/internal/run"
)

// stopTime bounds an orderly stop; what is not done by then is cut off.
const stopTime = 2 * time.Second

// lifetimes are the contexts and groups of a server's parts. Each group outlives
// the ones that need it: etcd the API server, and that its clients.
type lifetimes struct {
	etcd, api, clients               context.Context
	stopEtcd, stopAPI, stopClients   context.CancelCauseFunc
	etcdGroup, apiGroup, clientGroup run.Group
	// serving lasts until the API server has answered its last request.
	serving context.Context
	served  context.CancelFunc
	detach  func() bool // from the context given
}

// newLifetimes starts the stop of the clients when ctx ends; stop does the rest.
func newLifetimes(ctx context.Context) *lifetimes {
	l := &lifetimes{}
	l.etcd, l.stopEtcd = context.WithCancelCause(context.WithoutCancel(ctx))
	l.api, l.stopAPI = context.WithCancelCause(l.etcd)
	l.clients, l.stopClients = context.WithCancelCause(l.api)
	l.serving, l.served = context.WithCancel(context.WithoutCancel(l.api))
	l.detach = context.AfterFunc(ctx, func() { l.stopClients(nil) })
	return l
}

// must is a part that the cluster cannot do without: its error stops the server.
func (l *lifetimes) must(name string, f func() error) func() {
	return func() {
		if err := run.Catch(name, f); err != nil {
			l.stopClients(err)
		}
	}
}

// stop waits for the clients, the API server and etcd, in that order and for
// stopTime at most. The error is that of the part that stopped the server.
func (l *lifetimes) stop() error {
	finished := make(chan struct{})
	run.Go("stop", func() {
		defer close(finished)
		l.clientGroup.Wait()
		l.stopAPI(nil)
		l.apiGroup.Wait()
		l.stopEtcd(nil)
		l.etcdGroup.Wait()
	})
	select {
	case <-finished:
	case <-time.After(stopTime):
		slog.Warn("stopped before everything had ended by itself", "after", stopTime)
		l.stopEtcd(nil)
	}
	if err := context.Cause(l.clients); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// cancel ends all contexts at once.
func (l *lifetimes) cancel() {
	l.detach()
	l.served()
	l.stopClients(nil)
	l.stopAPI(nil)
	l.stopEtcd(nil)
}
