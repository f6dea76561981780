package apiserver

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"net/url"
	"strings"
	"sync/atomic"
)

func pathUnescape(s string) (string, error) { return url.PathUnescape(s) }

// health is what the health paths tell.
type health struct{ ready, stopping atomic.Bool }

// paths serves what is neither a resource nor discovery.
func (s *Server) paths(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case isHealth(path):
			s.serveHealth(w, r)
		case path == "/metrics":
			s.metrics.ServeHTTP(w, r)
		case path == "/metrics/slis":
			s.metrics.Health.ServeHTTP(w, r)
		case s.discovery == nil && (path == "/openid/v1/jwks" || path == "/.well-known/openid-configuration"):
			http.NotFound(w, r)
		case path == "/openid/v1/jwks":
			keys, err := s.tokens.JWKS()
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/jwk-set+json")
			w.Header().Set("Cache-Control", "public, max-age=3600")
			_, _ = w.Write(keys)
		case path == "/.well-known/openid-configuration":
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "public, max-age=3600")
			_, _ = w.Write(s.discovery)
		case strings.HasPrefix(path, "/debug/pprof") && !s.cfg.NoProfiling:
			profile(w, r)
		case !strings.HasPrefix(path, "/api") && s.cfg.Open[path] != nil:
			s.cfg.Open[path].ServeHTTP(w, r)
		default:
			api.ServeHTTP(w, r)
		}
	})
}

// profile answers with one of Go's profiles of this process.
func profile(w http.ResponseWriter, r *http.Request) {
	switch strings.TrimPrefix(r.URL.Path, "/debug/pprof") {
	case "":
		http.Redirect(w, r, "/debug/pprof/", http.StatusMovedPermanently)
	case "/cmdline":
		pprof.Cmdline(w, r)
	case "/profile":
		pprof.Profile(w, r)
	case "/symbol":
		pprof.Symbol(w, r)
	case "/trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r)
	}
}

// serveHealth answers /livez, /readyz and /healthz and their single checks as
// upstream does: "ok", or with ?verbose a line for each check.
func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	kind, only, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	checks := []struct {
		name string
		ok   func() bool
	}{
		{"ping", func() bool { return true }},
		{"etcd", func() bool { _, err := s.cfg.Store.Revision(r.Context()); return err == nil }},
		{"watch-cache", func() bool {
			select {
			case <-s.cache.Ready():
				return true
			default:
				return false
			}
		}},
		{"poststarthook/rbac/bootstrap-roles", s.health.ready.Load},
		{"shutdown", func() bool { return !s.health.stopping.Load() }},
	}
	if kind == "livez" { // a live server may still be starting
		checks = checks[:2]
	}
	var b strings.Builder
	healthy, found := true, only == ""
	for _, c := range checks {
		if only != "" && only != c.name {
			continue
		}
		found = true
		switch {
		case contains(r.URL.Query()["exclude"], c.name):
			fmt.Fprintf(&b, "[+]%s excluded: ok\n", c.name)
		case c.ok():
			fmt.Fprintf(&b, "[+]%s ok\n", c.name)
		default:
			healthy = false
			fmt.Fprintf(&b, "[-]%s failed: reason withheld\n", c.name)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, verbose := r.URL.Query()["verbose"]
	switch {
	case !found:
		http.NotFound(w, r)
	case !healthy:
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, "%s%s check failed\n", b.String(), kind)
	case verbose:
		fmt.Fprintf(w, "%s%s check passed\n", b.String(), kind)
	default:
		fmt.Fprint(w, "ok")
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}
