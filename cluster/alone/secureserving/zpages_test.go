package secureserving

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// TestPages: as text, or as an object of the kind and version that is asked for.
func TestPages(t *testing.T) {
	c := Component{Name: "kube-scheduler", Flags: func() map[string]string { return map[string]string{"v": "2"} }}
	h := c.handler(defaults(t))
	for _, tt := range []struct {
		path, accept string
		code         int
		kind, body   string
	}{
		{"/flagz", "", 200, "text/plain; charset=utf-8", "\nkube-scheduler flagz\n"},
		{"/flagz", "*/*", 200, "text/plain; charset=utf-8", "v: 2\n"},
		{"/flagz", "application/json;v=v1beta1;g=config.k8s.io;as=Flagz", 200, "application/json", `"flags":{"v":"2"},"kind":"Flagz","metadata":{"name":"kube-scheduler"}`},
		{"/flagz", "application/yaml;v=v1alpha1;g=config.k8s.io;as=Flagz", 200, "application/yaml", "apiVersion: config.k8s.io/v1alpha1\nflags:\n  v: \"2\"\n"},
		{"/flagz", "application/json", 406, "application/json", "only the following media types are accepted: text/plain, application/json, application/yaml"},
		{"/flagz", "application/json;v=v1;g=config.k8s.io;as=Flagz", 406, "application/json", "NotAcceptable"},
		{"/statusz", "application/json;v=v1beta1;g=config.k8s.io;as=Statusz", 200, "application/json", `"binaryVersion":"1.36.3","emulationVersion":"1.36"`},
		{"/statusz", "text/plain", 200, "text/plain; charset=utf-8", "\nUp: 0 hr 00 min "},
	} {
		r := httptest.NewRequest("GET", tt.path, nil)
		if tt.accept != "" {
			r.Header.Set("Accept", tt.accept)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Body.String(); w.Code != tt.code || w.Header().Get("Content-Type") != tt.kind || !strings.Contains(got, tt.body) {
			t.Errorf("%s as %q: %d %s %s", tt.path, tt.accept, w.Code, w.Header().Get("Content-Type"), got)
		}
	}
	c.NoFlagz, c.NoStatusz = true, true
	for _, path := range []string{"/flagz", "/statusz"} {
		w := httptest.NewRecorder()
		c.handler(defaults(t)).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != 404 {
			t.Errorf("%s is served though its feature is off: %d", path, w.Code)
		}
	}
}
