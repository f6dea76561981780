package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// health is what the health paths tell: what every cluster starts with is
// made, and this server is about to end.
type health struct{ made, stopping atomic.Bool }

// A check is one thing that a health path asks about. Its name is upstream's.
type check struct {
	name string
	// notLive says that a server may live for which it fails.
	notLive bool
	fails   func(ctx context.Context) error
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
		{"ping", false, always},
		{"log", false, always}, // upstream asks whether its log is still flushed; ours is written at once
		{"etcd", false, store},
		{"etcd-readiness", true, store},
	}
	if e := s.cfg.Encryption; e != nil && (s.cfg.ReloadEncryption || e.Plugins()) {
		all = append(all, check{"kms-providers", false, func(context.Context) error { return e.Check() }})
	}
	all = append(all, check{"informer-sync", true, closed(s.cache.Ready())})
	for _, h := range s.startHooks() {
		for name := range strings.FieldsSeq(h.names) {
			all = append(all, check{name, false, h.fails})
		}
	}
	return append(all, check{"shutdown", true, func(context.Context) error {
		if s.health.stopping.Load() {
			return errors.New("process is shutting down")
		}
		return nil
	}})
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
	return []hooks{
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
}

// always is a check of what cannot fail while there is an answer.
func always(context.Context) error { return nil }

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

// serveHealth answers /livez, /readyz and /healthz and their single checks as
// upstream does: "ok", or with ?verbose a line for each check. Who asks is not
// given the reason for a failure, except when a single check is asked for.
func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	kind, only, single := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	// A server that is about to end is not unhealthy, only not to be asked.
	all := slices.DeleteFunc(s.checks(), func(c check) bool { return c.notLive && kind != "readyz" })
	if single {
		i := slices.IndexFunc(all, func(c check) bool { return c.name == only })
		if i < 0 {
			http.NotFound(w, r)
			return
		}
		if err := all[i].fails(r.Context()); err != nil {
			http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "ok")
		return
	}
	lines, failed := s.examine(r.Context(), kind, all, r.URL.Query())
	if len(failed) > 0 {
		slog.WarnContext(r.Context(), "health check", "path", kind, "failed", strings.Join(failed, ","))
		http.Error(w, lines+kind+" check failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, verbose := r.URL.Query()["verbose"]; !verbose {
		fmt.Fprint(w, "ok")
		return
	}
	fmt.Fprintf(w, "%s%s check passed\n", lines, kind)
}

// examine makes all checks but those excluded.
func (s *Server) examine(ctx context.Context, kind string, all []check, query url.Values) (lines string, failed []string) {
	var b strings.Builder
	unknown := map[string]bool{}
	for _, name := range query["exclude"] {
		unknown[name] = true
	}
	for _, c := range all {
		if slices.Contains(query["exclude"], c.name) {
			delete(unknown, c.name)
			fmt.Fprintf(&b, "[+]%s excluded: ok\n", c.name)
			continue
		}
		err := c.fails(ctx)
		s.metrics.Health.ObserveCheck(c.name, kind, err == nil)
		if err != nil {
			failed = append(failed, c.name)
			fmt.Fprintf(&b, "[-]%s failed: reason withheld\n", c.name)
			continue
		}
		fmt.Fprintf(&b, "[+]%s ok\n", c.name)
	}
	if len(unknown) > 0 {
		var names []string
		for name := range unknown {
			names = append(names, strconv.Quote(name))
		}
		slices.Sort(names)
		fmt.Fprintf(&b, "warn: some health checks cannot be excluded: no matches for %s\n", strings.Join(names, ", "))
	}
	return b.String(), failed
}
