package endpoints

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// TestStopped: what reads from a server whose member of etcd ends is to ask again; a write
// may have been done.
func TestStopped(t *testing.T) {
	for method, want := range map[string]string{http.MethodGet: "503 1", http.MethodPost: "500 "} {
		w := httptest.NewRecorder()
		writeStatus(w, httptest.NewRequest(method, "/api/v1/nodes", nil), fmt.Errorf("ask the store for its revision: %w", rpctypes.ErrStopped))
		if got := fmt.Sprint(w.Code, " ", w.Header().Get("Retry-After")); got != want {
			t.Errorf("%s: %s, want %s", method, got, want)
		}
	}
}
