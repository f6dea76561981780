// Package healthz answers /healthz, /livez, /readyz and their single checks as upstream's
// programs do, and counts the results. It reads and writes nothing but its log.
package healthz

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Check says why something does not work; nil while it does. Its name is upstream's.
type Check struct {
	Name  string
	Fails func(context.Context) error
}

// Always is a check of what cannot fail while there is an answer.
func Always(context.Context) error { return nil }

// Of is a check of what asks nobody else.
func Of(name string, fails func() error) Check {
	return Check{name, func(context.Context) error { return fails() }}
}

// started is when the process began, as nearly as it matters here.
var started = time.Now()

// A Handler answers for a component.
type Handler struct {
	component string
	checks    func(path string) []Check
	last      *prometheus.GaugeVec
	total     *prometheus.CounterVec
	counts    *prometheus.Registry
}

// New returns the Handler of a component by its checks of a path, which is healthz, livez
// or readyz; where there are none, as with nil, all that counts is that it answers.
func New(component string, checks func(path string) []Check) *Handler {
	if checks == nil {
		checks = func(string) []Check { return nil }
	}
	h := &Handler{component: component, checks: checks, counts: prometheus.NewRegistry(),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubernetes_healthcheck",
			Help: "[STABLE] Whether a health check passed when it was last made."}, []string{"name", "type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubernetes_healthchecks_total",
			Help: "[STABLE] Health checks made, by their results."}, []string{"name", "type", "status"}),
	}
	h.counts.MustRegister(h.last, h.total, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "process_start_time_seconds",
		Help: "[ALPHA] When the process began, in seconds since 1970."}, func() float64 { return float64(started.UnixMilli()) / 1000 }))
	return h
}

// Metrics are what /metrics/slis tells.
func (h *Handler) Metrics() prometheus.Gatherer { return h.counts }

// ServeHTTP says "ok", or with ?verbose a line for each check. The reason of a failure is
// only in the answer about a single check, which not everybody may see.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, only, single := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	all := h.checks(path)
	if len(all) == 0 {
		all = []Check{{"ping", Always}}
	}
	if single {
		i := slices.IndexFunc(all, func(c Check) bool { return c.Name == only })
		if i < 0 {
			http.NotFound(w, r)
			return
		}
		if err := all[i].Fails(r.Context()); err != nil {
			http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprint(w, "ok")
		return
	}
	lines, failed := h.examine(r.Context(), path, all, r.URL.Query())
	if len(failed) > 0 {
		slog.WarnContext(r.Context(), "health check", "component", h.component, "path", path, "failed", strings.Join(failed, ","))
		http.Error(w, lines+path+" check failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, verbose := r.URL.Query()["verbose"]; !verbose {
		_, _ = fmt.Fprint(w, "ok")
		return
	}
	_, _ = fmt.Fprintf(w, "%s%s check passed\n", lines, path)
}

// examine makes all checks but those excluded.
func (h *Handler) examine(ctx context.Context, path string, all []Check, query url.Values) (lines string, failed []string) {
	var b strings.Builder
	unknown := map[string]bool{}
	for _, name := range query["exclude"] {
		unknown[name] = true
	}
	for _, c := range all {
		if slices.Contains(query["exclude"], c.Name) {
			delete(unknown, c.Name)
			fmt.Fprintf(&b, "[+]%s excluded: ok\n", c.Name)
			continue
		}
		err := c.Fails(ctx)
		h.count(c.Name, path, err == nil)
		if err != nil {
			failed = append(failed, c.Name)
			fmt.Fprintf(&b, "[-]%s failed: reason withheld\n", c.Name)
			continue
		}
		fmt.Fprintf(&b, "[+]%s ok\n", c.Name)
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

func (h *Handler) count(name, path string, ok bool) {
	last, status := 0.0, "error"
	if ok {
		last, status = 1, "success"
	}
	h.last.WithLabelValues(name, path).Set(last)
	h.total.WithLabelValues(name, path, status).Inc()
}
