package healthz

import (
	"errors"
	"net/http/httptest"
	"testing"
)

// TestHandler: in upstream's words, with the reason of a failure only where one check is
// asked for.
func TestHandler(t *testing.T) {
	h := New("c", func(path string) []Check {
		if path == "livez" {
			return nil
		}
		return []Check{{"good", Always}, Of("bad", func() error { return errors.New("why") })}
	})
	for _, c := range []struct {
		path, want string
		code       int
	}{
		{"/livez", "ok", 200},
		{"/livez?verbose", "[+]ping ok\nlivez check passed\n", 200},
		{"/readyz", "[+]good ok\n[-]bad failed: reason withheld\nreadyz check failed\n", 500},
		{"/readyz?verbose&exclude=bad&exclude=x", "[+]good ok\n[+]bad excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"x\"\nreadyz check passed\n", 200},
		{"/readyz/good", "ok", 200},
		{"/readyz/bad", "internal server error: why\n", 500},
		{"/readyz/none", "404 page not found\n", 404},
	} {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest("GET", c.path, nil)); w.Code != c.code || w.Body.String() != c.want {
			t.Errorf("%s: %d %q", c.path, w.Code, w.Body)
		}
	}
	families, err := h.Metrics().Gather()
	if err != nil || len(families) != 3 || families[0].GetName() != "kubernetes_healthcheck" || len(families[0].GetMetric()) != 3 || families[2].GetName() != "process_start_time_seconds" {
		t.Errorf("%v, %v", families, err)
	}
}
