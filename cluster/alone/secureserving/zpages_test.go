package secureserving

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// TestPages: those of a component are served unless their features are off.
func TestPages(t *testing.T) {
	c := Component{Name: "kube-scheduler", Flags: func() map[string]string { return map[string]string{"v": "2"} }}
	for path, want := range map[string]string{"/flagz": "v: 2\n", "/statusz": "Paths: /configz /flagz /healthz /livez /metrics /readyz\n"} {
		w := httptest.NewRecorder()
		c.handler(defaults(t)).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != 200 || !strings.HasSuffix(w.Body.String(), want) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
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
