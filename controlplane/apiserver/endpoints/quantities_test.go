package endpoints

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestGiganticQuantities: a quantity costs what its length says, and one with an
// exponent that nothing can compute with is refused, in a new object and in a
// changed one.
func TestGiganticQuantities(t *testing.T) {
	w := newWorld(t)
	const pods = "/api/v1/namespaces/default/pods"
	body := func(name, request, limit string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":%q},"limits":{"cpu":%q}}}]}}`, name, request, limit)
	}
	for i, c := range []struct {
		request, limit string
		code           int
	}{
		{"1e-999999999", "1", http.StatusCreated}, // the least there is
		{"12345678901234567890e-999999999", "1", http.StatusCreated},
		{"1e2", "1e3", http.StatusCreated},
		{"1", "1e999999999", http.StatusUnprocessableEntity},
		{"1e2147483647", "1500m", http.StatusUnprocessableEntity},
		{"1500m", "1e2147483647", http.StatusUnprocessableEntity},
	} {
		code, text, _ := w.do("POST", pods, "application/json", body(fmt.Sprintf("p%d", i), c.request, c.limit))
		if code != c.code {
			t.Errorf("%s and %s: %d %.300s", c.request, c.limit, code, text)
		}
		if code == http.StatusUnprocessableEntity && !strings.Contains(text, "spec.containers[0].resources.") {
			t.Errorf("the answer does not name the field: %s", text)
		}
	}
	change := `{"spec":{"overhead":{"cpu":"1e2147483647"}}}`
	code, text, _ := w.do("PATCH", pods+"/p0", "application/merge-patch+json", change)
	if code != http.StatusUnprocessableEntity || !strings.Contains(text, "spec.overhead[cpu]") || !strings.Contains(text, "must have an exponent") {
		t.Errorf("patch: %d %s", code, text)
	}
}
