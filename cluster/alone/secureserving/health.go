package secureserving

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// A Check says why a component does not work; nil while it does.
type Check struct {
	Name  string
	Fails func() error
}

// health serves the checks of a component, and counts their results.
type health struct {
	component string
	checks    func(path string) []Check
	last      *prometheus.GaugeVec
	total     *prometheus.CounterVec
	registry  *prometheus.Registry
}

func newHealth(c Component) *health {
	h := &health{component: c.Name, checks: c.Checks, registry: prometheus.NewRegistry(),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubernetes_healthcheck",
			Help: "[STABLE] Whether a health check passed when it was last made."}, []string{"name", "type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubernetes_healthchecks_total",
			Help: "[STABLE] Health checks made, by their results."}, []string{"name", "type", "status"}),
	}
	h.registry.MustRegister(h.last, h.total)
	return h
}

// of are the checks of a path, which is healthz, livez or readyz; ping without others.
func (h *health) of(path string) (all []Check) {
	if h.checks != nil {
		all = h.checks(path)
	}
	if len(all) == 0 {
		all = []Check{{"ping", func() error { return nil }}}
	}
	return all
}

// ServeHTTP answers in upstream's words. The reason of a failure is only in the answer
// about a single check, which not everybody may see.
func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, only, single := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	all := h.of(path)
	if single {
		i := slices.IndexFunc(all, func(c Check) bool { return c.Name == only })
		if i < 0 {
			http.NotFound(w, r)
			return
		}
		if err := all[i].Fails(); err != nil {
			http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprint(w, "ok")
		return
	}
	lines, failed := h.examine(path, all, r.URL.Query())
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
func (h *health) examine(path string, all []Check, query url.Values) (lines string, failed []string) {
	var b strings.Builder
	unknown := map[string]bool{}
	for _, name := range query["exclude"] {
		unknown[strconv.Quote(name)] = true
	}
	for _, c := range all {
		if slices.Contains(query["exclude"], c.Name) {
			delete(unknown, strconv.Quote(c.Name))
			fmt.Fprintf(&b, "[+]%s excluded: ok\n", c.Name)
			continue
		}
		if c.Fails() != nil {
			h.last.WithLabelValues(c.Name, path).Set(0)
			h.total.WithLabelValues(c.Name, path, "error").Inc()
			failed = append(failed, c.Name)
			fmt.Fprintf(&b, "[-]%s failed: reason withheld\n", c.Name)
			continue
		}
		h.last.WithLabelValues(c.Name, path).Set(1)
		h.total.WithLabelValues(c.Name, path, "success").Inc()
		fmt.Fprintf(&b, "[+]%s ok\n", c.Name)
	}
	if len(unknown) > 0 {
		var names []string
		for name := range unknown {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(&b, "warn: some health checks cannot be excluded: no matches for %s\n", strings.Join(names, ", "))
	}
	return b.String(), failed
}
