package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"knarr/internal/healthz"
)

// health is what the health paths tell: what every cluster starts with is
// made, and this server is about to end.
type health struct{ made, stopping atomic.Bool }

// A check is one thing that a health path asks about.
type check struct {
	healthz.Check
	// notLive says that a server may live for which it fails.
	notLive bool
}

// storeTime bounds a check's question to the store, upstream's bound.
const storeTime = 2 * time.Second

var errNotFinished = errors.New("not finished")

// checks are those of all health paths, in upstream's order.
func (s *Server) checks() []check {
	store := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, storeTime)
		defer cancel()
		_, err := s.cfg.Store.Revision(ctx)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("error getting data from etcd: %w", err)
		}
		return nil
	}
	all := []check{
		{healthz.Check{Name: "ping", Fails: healthz.Always}, false},
		{healthz.Check{Name: "log", Fails: healthz.Always}, false}, // upstream asks whether its log is still flushed; ours is written at once
		{healthz.Check{Name: "etcd", Fails: store}, false},
		{healthz.Check{Name: "etcd-readiness", Fails: store}, true},
	}
	if e := s.cfg.Encryption; e != nil && (s.cfg.ReloadEncryption || e.Plugins()) {
		all = append(all, check{healthz.Check{Name: "kms-providers", Fails: func(context.Context) error { return e.Check() }}, false})
	}
	all = append(all, check{healthz.Check{Name: "informer-sync", Fails: closed(s.cache.Ready())}, true})
	for _, h := range s.startHooks() {
		for name := range strings.FieldsSeq(h.names) {
			all = append(all, check{healthz.Check{Name: name, Fails: h.fails}, false})
		}
	}
	return append(all, check{healthz.Check{Name: "shutdown", Fails: func(context.Context) error {
		if s.health.stopping.Load() {
			return errors.New("process is shutting down")
		}
		return nil
	}}, true})
}

// hooks are checks of one condition, by the names that probes and dashboards
// written for upstream ask for.
type hooks struct {
	names string
	fails func(context.Context) error
}

// startHooks are what upstream's server starts in a hook each, by what has to have
// happened here for it to be so: the cache has been filled, the objects that every
// cluster starts with are made, custom resources are served, all else runs.
func (s *Server) startHooks() []hooks {
	made := func(context.Context) error {
		if !s.health.made.Load() {
			return errNotFinished
		}
		return nil
	}
	filled, served, started := closed(s.cache.Ready()), closed(s.custom.Synced()), closed(s.started)
	all := []hooks{
		{`poststarthook/start-apiserver-admission-initializer poststarthook/generic-apiserver-start-informers
		poststarthook/storage-readiness poststarthook/start-apiextensions-informers`, filled},
		{"poststarthook/start-apiextensions-controllers poststarthook/crd-informer-synced", served},
		{`poststarthook/start-system-namespaces-controller poststarthook/start-cluster-authentication-info-controller
		poststarthook/rbac/bootstrap-roles poststarthook/scheduling/bootstrap-system-priority-classes
		poststarthook/priority-and-fairness-config-producer`, made},
		{`poststarthook/bootstrap-controller poststarthook/start-service-ip-repair-controllers
		poststarthook/priority-and-fairness-config-consumer`, started},
		{"poststarthook/start-kube-aggregator-informers", filled},
		{`poststarthook/apiservice-registration-controller poststarthook/apiservice-status-local-available-controller
		poststarthook/apiservice-status-remote-available-controller poststarthook/apiservice-discovery-controller`, started},
		{"poststarthook/kube-apiserver-autoregistration autoregister-completion", made},
		{"poststarthook/apiservice-openapi-controller poststarthook/apiservice-openapiv3-controller", started},
	}
	if s.versions != nil {
		all = append(all, hooks{`poststarthook/start-kube-apiserver-identity-lease-controller
		poststarthook/start-kube-apiserver-identity-lease-garbage-collector poststarthook/built-in-resources-storage-version-updater`, closed(s.versions.recorded)})
	}
	return all
}

// closed is a check that something has happened.
func closed(c <-chan struct{}) func(context.Context) error {
	return func(context.Context) error {
		select {
		case <-c:
			return nil
		default:
			return errNotFinished
		}
	}
}

// newHealthz answers the health paths. A server that is about to end is not unhealthy, only
// not to be asked.
func (s *Server) newHealthz() *healthz.Handler {
	return healthz.New("kube-apiserver", func(path string) (all []healthz.Check) {
		for _, c := range s.checks() {
			if path == "readyz" || !c.notLive {
				all = append(all, c.Check)
			}
		}
		return all
	})
}
