package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"knarr/controlplane/apiserver/storage"
)

// TestOpenPaths: what judges for itself is asked without credentials, under
// exactly its path; nothing else is.
func TestOpenPaths(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	store := storage.NewMemory()
	defer store.Close()
	s, err := New(Config{Store: store, ServiceAccountKey: key, Open: map[string]http.Handler{
		"/v1-knarr/join": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "judged") }),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"/v1-knarr/join": http.StatusOK, "/v1-knarr/join/": http.StatusUnauthorized, "/v1-knarr": http.StatusUnauthorized,
		"/V1-knarr/join": http.StatusUnauthorized, "/api/v1/nodes": http.StatusUnauthorized, "/metrics": http.StatusUnauthorized,
	} {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
		if w.Code != want || (want == http.StatusOK) != (w.Body.String() == "judged") {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, want)
		}
	}
	// Who is not known does not get in by giving credentials.
	r := httptest.NewRequest(http.MethodPost, "/v1-knarr/join", nil)
	r.Header.Set("Authorization", "Bearer guess")
	w := httptest.NewRecorder()
	if s.Handler().ServeHTTP(w, r); w.Code != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %d", w.Code)
	}
}
