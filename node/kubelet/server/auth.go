package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"knarr/internal/delegation"
	"knarr/internal/headerlimit"
)

// Auth lets in the users whom the API server allows the node's subresources.
type Auth struct {
	// Delegator asks the API server.
	*delegation.Delegator
	// Node is the name of the Node the permissions are about.
	Node string
	// Anonymous lets in who does not say who they are, as system:anonymous, and
	// AlwaysAllow allows everything to everybody who is let in.
	Anonymous, AlwaysAllow bool
}

func (a *Auth) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, ok, err := a.Authenticate(r)
		if err == nil && !ok && a.Anonymous && r.Header.Get("Authorization") == "" {
			u, ok = authenticationv1.UserInfo{Username: "system:anonymous", Groups: []string{"system:unauthenticated"}}, true
		}
		if err != nil || !ok {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		if under(r.URL.Path, sharedImages) {
			if !isNode(u) {
				http.Error(w, fmt.Sprintf("Forbidden (user=%s): images are for nodes", u.Username), http.StatusForbidden)
				return
			}
			headerlimit.Known(r)
			next.ServeHTTP(w, r)
			return
		}
		if a.AlwaysAllow {
			headerlimit.Known(r)
			next.ServeHTTP(w, r)
			return
		}
		attrs := attributes(r.Method, r.URL.Path)
		for _, at := range attrs {
			allowed, err := a.Authorize(r.Context(), u, &authorizationv1.ResourceAttributes{
				Verb: at.verb, Version: "v1", Resource: "nodes", Subresource: at.sub, Name: a.Node}, nil)
			if err != nil {
				http.Error(w, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource(s)=%s)", u.Username, at.verb, at.sub), http.StatusInternalServerError)
				return
			}
			if allowed {
				headerlimit.Known(r)
				next.ServeHTTP(w, r)
				return
			}
		}
		subs := make([]string, len(attrs))
		for i, at := range attrs {
			subs[i] = at.sub
		}
		http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", u.Username, attrs[0].verb, subs), http.StatusForbidden)
	})
}

// sharedImages is where nodes get each other's images.
const sharedImages = "/v2"

// isNode says whether a user is a node, as the API server's node authorizer does.
func isNode(u authenticationv1.UserInfo) bool {
	return strings.HasPrefix(u.Username, "system:node:") && slices.Contains(u.Groups, "system:nodes")
}

type attribute struct{ verb, sub string }

func under(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}

// attributes are the permissions any of which is enough for a request.
func attributes(method, path string) []attribute {
	verb := map[string]string{"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
	var subs []string
	switch {
	case under(path, "/pods"), under(path, "/runningpods"):
		subs = []string{"pods", "proxy"}
	case under(path, "/healthz"):
		subs = []string{"healthz", "proxy"}
	case under(path, "/configz"):
		subs = []string{"configz", "proxy"}
	case under(path, "/flagz"):
		subs = []string{"configz"}
	case under(path, "/statusz"):
		subs = []string{"statusz"}
	case under(path, "/stats"):
		subs = []string{"stats"}
	case under(path, "/metrics"):
		subs = []string{"metrics"}
	case under(path, "/checkpoint"):
		subs = []string{"checkpoint"}
	case under(path, "/logs"):
		subs = []string{"log"}
	default:
		subs = []string{"proxy"}
	}
	out := make([]attribute, len(subs))
	for i, s := range subs {
		out[i] = attribute{verb, s}
	}
	return out
}
