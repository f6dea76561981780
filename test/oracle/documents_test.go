package oracle

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"knarr/controlplane/apiserver/registry"
)

// documents are what the server says of itself: discovery, OpenAPI, version.
func documents() kind {
	k := kind{name: "documents"}
	g := func(path string, accepts ...string) {
		for _, accept := range append(accepts, "") {
			k.before = append(k.before, request{name: strings.TrimSpace("GET " + path + " " + accept), method: "GET", path: path, accept: accept})
		}
	}
	const (
		aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
		older      = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
		both       = aggregated + "," + older + ",application/json"
		odd        = "application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList"
	)
	for _, path := range []string{"/api", "/apis"} {
		g(path, aggregated, older, both, odd, "application/yaml", "text/odd", asTable, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer")
	}
	groups := []string{}
	for _, r := range registry.Resources {
		path, group := "/apis/"+r.GVK().GroupVersion().String(), "/apis/"+r.GVK().Group
		if r.GVK().Group == "" {
			path, group = "/api/v1", "/api"
		}
		for _, p := range []string{group, path} {
			if !slices.Contains(groups, p) {
				groups = append(groups, p)
				k.before = append(k.before, request{name: "openapi " + p, method: "GET", path: "/openapi/v3" + p, digest: true})
				if p != "/api" {
					g(p, aggregated, "application/yaml", "text/odd")
				}
			}
		}
	}
	for _, p := range []string{"/apis", "/version", "/.well-known/openid-configuration", "/openid/v1/jwks"} {
		k.before = append(k.before, request{name: "openapi " + p, method: "GET", path: "/openapi/v3" + p, digest: true})
	}
	k.before = append(k.before, request{name: "openapi v2", method: "GET", path: "/openapi/v2", digest: true})
	g("/openapi/v3", "text/odd")
	for _, path := range []string{"/apis/odd", "/apis/apps/odd", "/apis/apps/v1/odd", "/api/odd", "/api/v1/odd", "/api/v1/odd/a/b", "/odd", "/apis/odd.example.com/v1", "/apis/odd.example.com/v1/odds",
		"/api/", "/apis/", "/apis/apps/", "/apis/apps/v1/", "/api/v1/", "/api/v1/namespaces/default/odd", "/apis/apps/v1/namespaces/default/pods", "/api/v1/watch/odd", "/version", "/version/",
		"/openapi/v3/odd", "/openapi/v3/apis/odd/v1", "/openapi", "/openapi/v2/odd", "/swagger.json", "/healthz/odd", "/readyz/odd", "/livez/odd", "/healthz", "/livez", "/readyz", "/metrics/odd", "/logs",
		"/.well-known/openid-configuration", "/openid/v1/jwks/odd", "/apis/apiregistration.k8s.io/v1/apiservices/v1.odd", "//api", "/api/v1/pods/../nodes/absent"} {
		g(path, "application/yaml", "text/odd")
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "ODD"} {
		for _, path := range []string{"/api", "/apis", "/api/v1", "/apis/apps", "/apis/apps/v1", "/version", "/openapi/v2", "/openapi/v3", "/odd", "/healthz"} {
			if method != "POST" && strings.HasPrefix(path, "/openapi") {
				continue // large, and served whatever the method is
			}
			k.before = append(k.before, request{name: method + " " + path, method: method, path: path, digest: path == "/openapi/v2"})
		}
	}
	return k
}

// digest is a document by its parts: of each operation and of each schema a
// sum. Where a parameter stands is left out: with its path, with the operation or
// at the end of the document.
func digest(doc any) any {
	sum := func(v any) any {
		h := sha256.Sum256(encode(v))
		return hex.EncodeToString(h[:4])
	}
	d, ok := doc.(map[string]any)
	if !ok {
		return doc
	}
	shared, _ := d["parameters"].(map[string]any)
	delete(d, "parameters")
	out := map[string]any{}
	for name, part := range d {
		switch m, _ := part.(map[string]any); name {
		case "paths":
			for path, item := range m {
				methods, _ := item.(map[string]any)
				common, _ := methods["parameters"].([]any)
				delete(methods, "parameters")
				for method, op := range methods {
					if o, ok := op.(map[string]any); ok {
						own, _ := o["parameters"].([]any)
						o["parameters"] = parameters(shared, append(own, common...))
					}
					out["paths "+path+" "+method] = sum(op)
				}
			}
		case "components":
			for _, schemas := range m {
				parts, _ := schemas.(map[string]any)
				for schema, s := range parts {
					out["schema "+schema] = sum(s)
				}
			}
		case "definitions":
			for schema, s := range m {
				out["schema "+schema] = sum(s)
			}
		default:
			out[name] = part
		}
	}
	return out
}

// parameters are all of an operation's, in order.
func parameters(shared map[string]any, all []any) []string {
	var out []string
	for _, p := range all {
		if ref, ok := at(p, []string{"$ref"}).(string); ok {
			p = shared[ref[strings.LastIndex(ref, "/")+1:]]
		}
		out = append(out, string(encode(p)))
	}
	slices.Sort(out)
	return out
}
