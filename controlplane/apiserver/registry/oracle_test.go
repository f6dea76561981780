package registry

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"testing"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// oracle asks the reference API server named by KNARR_ORACLE.
func oracle(t *testing.T, method, path string, body []byte, accept string, into any) (code int, warnings []string) {
	t.Helper()
	host := os.Getenv("KNARR_ORACLE")
	if host == "" {
		t.Fatal("-update needs KNARR_ORACLE and KNARR_ORACLE_TOKEN")
	}
	req, err := http.NewRequestWithContext(t.Context(), method, host+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv("KNARR_ORACLE_TOKEN"))
	req.Header.Set("Accept", accept)
	req.Header.Set("Content-Type", "application/json")
	if method == "PATCH" {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, data)
	}
	headers, errs := utilnet.ParseWarningHeaders(resp.Header.Values("Warning"))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, h := range headers {
		warnings = append(warnings, h.Text)
	}
	return resp.StatusCode, warnings
}

// collectionPath is where a resource's objects are created and listed.
func collectionPath(r Resource, namespace string) string {
	gvr := r.GVR()
	path := "/apis/" + gvr.Group + "/" + gvr.Version
	if gvr.Group == "" {
		path = "/api/" + gvr.Version
	}
	if r.Namespaced() {
		path += "/namespaces/" + namespace
	}
	return path + "/" + gvr.Resource
}
