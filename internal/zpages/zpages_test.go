package zpages

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// TestPages: as text, or as an object of the kind and version that is asked for.
func TestPages(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/flagz", Flagz("kube-scheduler", func() map[string]string { return map[string]string{"v": "2", "a": "[]"} }))
	mux.Handle("/statusz", Statusz("kube-scheduler", []string{"/readyz", "/metrics/slis", "/metrics", "/"}))
	for _, tt := range []struct {
		path, accept string
		code         int
		kind, body   string
	}{
		{"/flagz", "", 200, "text/plain; charset=utf-8", "\nkube-scheduler flagz\nWarning: "},
		{"/flagz", "*/*", 200, "text/plain; charset=utf-8", "a: []\nv: 2\n"},
		{"/flagz", "application/json;v=v1beta1;g=config.k8s.io;as=Flagz", 200, "application/json;g=config.k8s.io;v=v1beta1;as=Flagz",
			`{"kind":"Flagz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"kube-scheduler"},"flags":{"a":"[]","v":"2"}}` + "\n"},
		{"/flagz", "application/yaml;v=v1alpha1;g=config.k8s.io;as=Flagz", 200, "application/yaml;g=config.k8s.io;v=v1alpha1;as=Flagz", "apiVersion: config.k8s.io/v1alpha1\nflags:\n  a: '[]'\n"},
		{"/flagz", "text/plain;q=0.5, application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz", 200, "application/yaml;g=config.k8s.io;v=v1beta1;as=Flagz", "kind: Flagz\n"},
		{"/flagz", "application/*;v=v1beta1;g=config.k8s.io;as=Flagz", 200, "application/json;g=config.k8s.io;v=v1beta1;as=Flagz", `"v":"2"`},
		{"/flagz", "application/json, text/plain", 200, "text/plain; charset=utf-8", "v: 2\n"},
		{"/flagz", "application/json", 406, "application/json", "only the following media types are accepted: application/json, application/yaml, text/plain"},
		{"/flagz", "text/plain;v=v1beta1", 406, "application/json", "NotAcceptable"},
		{"/flagz", "application/json;v=v1;g=config.k8s.io;as=Flagz", 406, "application/json", "NotAcceptable"},
		{"/flagz", "application/json;v=v1beta1;g=config.k8s.io;as=Statusz", 406, "application/json", "NotAcceptable"},
		{"/statusz", "application/json;v=v1beta1;g=config.k8s.io;as=Statusz", 200, "application/json;g=config.k8s.io;v=v1beta1;as=Statusz", `"binaryVersion":"1.36.3","emulationVersion":"1.36","paths":["/metrics","/readyz"]}`},
		{"/statusz", "text/plain", 200, "text/plain; charset=utf-8", "\nUp: 0 hr 00 min "},
		{"/statusz", "text/plain", 200, "text/plain; charset=utf-8", "\nEmulation version: 1.36\nPaths: /metrics /readyz\n"},
	} {
		r := httptest.NewRequest("GET", tt.path, nil)
		if tt.accept != "" {
			r.Header.Set("Accept", tt.accept)
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if got := w.Body.String(); w.Code != tt.code || w.Header().Get("Content-Type") != tt.kind || !strings.Contains(got, tt.body) {
			t.Errorf("%s as %q: %d %s %s", tt.path, tt.accept, w.Code, w.Header().Get("Content-Type"), got)
		}
		if warned := w.Header().Get("Warning") != ""; warned != strings.Contains(tt.accept, "v1alpha1") {
			t.Errorf("%s as %q: %v", tt.path, tt.accept, w.Header())
		}
	}
}

func TestFirstParts(t *testing.T) {
	if got := firstParts([]string{"/metrics/slis", "x", "/", "/healthz", "/metrics"}); !slices.Equal(got, []string{"/healthz", "/metrics"}) {
		t.Error(got)
	}
}
