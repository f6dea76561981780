package server

import (
	"net/http"
	"strings"

	"knarr/internal/profiles"
)

// Limits switch parts of the server off.
type Limits struct {
	// NoDebugging: no logs, streams, checkpoints and profiles. NoSystemLogs: no logs of the node.
	// NoProfiles: no profiles. NoFlags: the level of the log cannot be set.
	NoDebugging, NoSystemLogs, NoProfiles, NoFlags bool
}

// Restrict answers what is switched off itself.
func Restrict(next http.Handler, l Limits) http.Handler {
	if l == (Limits{}) {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		any := func(roots ...string) bool {
			for _, root := range roots {
				if under(path, root) {
					return true
				}
			}
			return false
		}
		switch {
		case l.NoDebugging && any("/run", "/exec", "/attach", "/portForward", "/containerLogs", "/runningpods", "/logs", profiles.Root):
			http.Error(w, "Debug endpoints are disabled.", http.StatusMethodNotAllowed)
		case l.NoDebugging && any("/checkpoint", "/configz", "/flagz", "/statusz", levelPath):
			http.NotFound(w, r)
		case l.NoSystemLogs && any("/logs"):
			http.Error(w, "logs endpoint is disabled.", http.StatusMethodNotAllowed)
		case l.NoProfiles && any(profiles.Root):
			http.Error(w, "profiling endpoint is disabled.", http.StatusMethodNotAllowed)
		case l.NoFlags && any(levelPath):
			http.Error(w, "flags endpoint is disabled.", http.StatusMethodNotAllowed)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// ReadOnly lets everybody read what harms nobody: pods, statistics and metrics.
func ReadOnly(h Host) http.Handler {
	all := New(h, nil)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ok := r.Method == http.MethodGet || r.Method == http.MethodHead
		for _, root := range []string{"/healthz", "/pods", "/stats", "/metrics"} {
			if ok && under(strings.TrimSuffix(r.URL.Path, "/"), root) {
				all.ServeHTTP(w, r)
				return
			}
		}
		http.NotFound(w, r)
	})
}
