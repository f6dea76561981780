package apiserver

import (
	"net/http"
	"strings"

	"knarr/controlplane/apiserver/endpoints"
	"knarr/internal/profiles"
)

// pathTypes are the forms of documents that have but one.
var pathTypes = map[string]string{"/openid/v1/jwks": "application/jwk-set+json", "/.well-known/openid-configuration": "application/json"}

// featured serves the API with the features that were turned on.
func (s *Server) featured(api http.Handler) http.Handler {
	if len(s.cfg.Features) == 0 {
		return api
	}
	if s.versions != nil {
		api = s.versions.barrier(api)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		api.ServeHTTP(w, r.WithContext(s.cfg.Features.With(r.Context())))
	})
}

// paths serves what is neither a resource nor discovery.
func (s *Server) paths(api http.Handler) http.Handler {
	profiled := profiles.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case isHealth(path):
			s.healthz.ServeHTTP(w, r)
		case path == "/metrics":
			s.metrics.ServeHTTP(w, r)
		case path == "/metrics/slis":
			s.slis.ServeHTTP(w, r)
		case s.discovery == nil && (path == "/openid/v1/jwks" || path == "/.well-known/openid-configuration"):
			http.NotFound(w, r)
		case (path == "/openid/v1/jwks" || path == "/.well-known/openid-configuration") && endpoints.Unroutable(w, r, pathTypes[path]):
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
		case strings.HasPrefix(path, profiles.Root) && !s.cfg.NoProfiling:
			profiled.ServeHTTP(w, r)
		case !strings.HasPrefix(path, "/api") && s.cfg.Open[path] != nil:
			s.cfg.Open[path].ServeHTTP(w, r)
		default:
			api.ServeHTTP(w, r)
		}
	})
}

func isHealth(path string) bool {
	for _, p := range []string{"/livez", "/readyz", "/healthz"} {
		if path == p || strings.HasPrefix(path, p+"/") {
			return true
		}
	}
	return false
}
