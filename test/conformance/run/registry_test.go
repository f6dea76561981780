package main

import (
	"archive/tar"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func TestRegistry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "images.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, e := range [][2]string{{"blobs/sha256/aa", "a layer"}, {"blobs/sha256/bb", "{}"},
		{"index.json", `{"manifests":[{"digest":"sha256:bb","annotations":{"io.containerd.image.name":"registry.k8s.io/e2e/x:1"}}]}`}} {
		if err := w.WriteHeader(&tar.Header{Name: e[0], Mode: 0o644, Size: int64(len(e[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f.Close()

	r, err := openRegistry(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	srv := httptest.NewServer(r)
	defer srv.Close()
	for _, c := range []struct {
		path, want string
		code       int
	}{
		{"/v2/", "", 200},
		{"/v2/e2e/x/manifests/1?ns=registry.k8s.io", "{}", 200},
		{"/v2/e2e/x/manifests/sha256:bb", "{}", 200},
		{"/v2/e2e/x/blobs/sha256:aa", "a layer", 200},
		{"/v2/e2e/x/blobs/sha256:aa", "a layer", 200},
		{"/v2/e2e/x/manifests/2", "404 page not found\n", 404},
		{"/v2/e2e/y/blobs/sha256:cc", "404 page not found\n", 404},
		{"/other", "404 page not found\n", 404},
	} {
		resp, err := http.Get(srv.URL + c.path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.code || string(b) != c.want {
			t.Errorf("%s: %s %q", c.path, resp.Status, b)
		}
	}
}
