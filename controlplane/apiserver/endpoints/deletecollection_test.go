package endpoints

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"knarr/controlplane/apiserver/admission"
)

// A trap is admission that panics when a ConfigMap is deleted.
type trap struct{ admitAll }

func (trap) Admit(_ context.Context, a *admission.Attributes) error {
	if a.Operation == admission.Delete {
		panic("a trap")
	}
	return nil
}

// TestDeleteCollectionPanics: a panic over one object fails the request, which
// does not wait for workers that are gone; the server goes on.
func TestDeleteCollectionPanics(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Admission = trap{} })
	const path = "/api/v1/namespaces/default/configmaps"
	for i := range 5 * deleteWorkers {
		if code, body, _ := w.do("POST", path, "application/json", fmt.Sprintf(`{"metadata":{"name":"c%d"}}`, i)); code != http.StatusCreated {
			t.Fatal(code, body)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "DELETE", w.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 4096)
	n, _ := resp.Body.Read(buf)
	if resp.StatusCode != http.StatusInternalServerError || !strings.Contains(string(buf[:n]), "DeleteCollection goroutine: panic: a trap") {
		t.Errorf("%s: %s", resp.Status, buf[:n])
	}
	if code, body, _ := w.do("GET", path+"/c0", "", ""); code != http.StatusOK {
		t.Errorf("afterwards: %d %s", code, body)
	}
}
