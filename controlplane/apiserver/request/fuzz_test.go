package request

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// Every URL is read one way or refused, and what is authorised is what is in
// the path.
func FuzzParseInfo(f *testing.F) {
	for _, path := range []string{
		"/api/v1/namespaces/ns/pods/p/log?container=c", "/apis/apps/v1/deployments?watch=1&fieldSelector=metadata.name%3Da",
		"/api/v1/namespaces/ns/finalize", "/api/v1/watch/namespaces/ns/pods/p", "/api/v1/proxy", "/api/v1/watch", "/api//v1///pods",
		"/apis/a/b", "/version", "/", "", "/api/v1/namespaces/ns/services/s/proxy/../../x", "/api/v1/nodes/n/proxy/pods?x", "/api/v1/pods?fieldSelector=metadata.name=../x",
	} {
		f.Add("GET", path)
	}
	f.Add("DELETE", "/api/v1/namespaces/ns/secrets")
	f.Add("\x00", "/api/v1/pods")
	f.Fuzz(func(t *testing.T, method, path string) {
		u, err := url.Parse(path)
		if err != nil {
			return
		}
		info, err := ParseInfo(&http.Request{Method: method, URL: u})
		if err != nil {
			return
		}
		if info.Path != u.Path {
			t.Fatalf("path %q of %q", info.Path, u.Path)
		}
		if !info.IsResource {
			if info.Resource != "" || info.Namespace != "" || info.Name != "" || info.IsLongRunning() {
				t.Fatalf("%+v", info)
			}
			return
		}
		if info.Version == "" && !strings.Contains(u.Path, "//") {
			t.Fatalf("no version: %+v", info)
		}
		for _, part := range []string{info.Group, info.Version, info.Namespace, info.Resource, info.Subresource} {
			if strings.Contains(part, "/") || !strings.Contains(u.Path, part) {
				t.Fatalf("%q is not of %q", part, u.Path)
			}
		}
		if strings.Contains(info.Name, "/") {
			t.Fatalf("name %q", info.Name)
		}
		if (info.Verb == "list" || info.Verb == "deletecollection") && len(info.Parts) > 1 && info.Parts[1] != "" {
			t.Fatalf("a name, but %s: %+v", info.Verb, info)
		}
	})
}
