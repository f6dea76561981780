package containerruntime

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/containerruntime/registries"
)

// TestMirrors: images are fetched from where registries.yaml says, by other names, with the
// credentials and the authority that it has, and not from the registry itself.
func TestMirrors(t *testing.T) {
	if isolated(t) {
		return
	}
	var mu sync.Mutex
	var asked []string
	mirror := httptest.NewTLSServer(imageRegistry(t, func(r *http.Request) bool {
		mu.Lock()
		asked = append(asked, r.Method+" "+r.URL.Path)
		mu.Unlock()
		user, password, _ := r.BasicAuth()
		return user == "ann" && password == "secret"
	}))
	defer mirror.Close()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: mirror.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(mirror.URL, "https://")
	c, err := registries.Parse([]byte(`
mirrors:
  named.example.com: {endpoint: ["https://` + host + `"], rewrite: {"^team/(.*)": "copies/$1"}}
  "*": {endpoint: ["https://` + host + `"]}
configs:
  "` + host + `": {auth: {username: ann, password: secret}, tls: {ca_file: ` + ca + `}}
`))
	if err != nil {
		t.Fatal(err)
	}
	c.NoDefault = true
	n := newNodeWith(t, func(config *Config) { config.Registries = c })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, image := range []string{"named.example.com/team/app:v1", "any.example.com/app:v1"} {
		if _, err := n.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
			t.Errorf("%s: %v", image, err)
		}
	}
	for _, path := range []string{"/v2/copies/app/manifests/v1", "/v2/app/manifests/v1"} {
		if mu.Lock(); !slices.Contains(asked, "HEAD "+path) {
			t.Errorf("the mirror was not asked for %s but for %q", path, asked)
		}
		mu.Unlock()
	}
}

// TestWildcardCredentials: those under "*" are sent to a mirror that has no entry of its own,
// and not to a registry that only an image names.
func TestWildcardCredentials(t *testing.T) {
	if isolated(t) {
		return
	}
	var mu sync.Mutex
	users := map[string]map[string]bool{"mirror": {}, "registry": {}}
	serve := func(name string) *httptest.Server {
		return httptest.NewTLSServer(imageRegistry(t, func(r *http.Request) bool {
			user, password, _ := r.BasicAuth()
			mu.Lock()
			defer mu.Unlock()
			users[name][user] = true
			return user == "ann" && password == "secret"
		}))
	}
	mirror, registry := serve("mirror"), serve("registry")
	defer mirror.Close()
	defer registry.Close()
	c, err := registries.Parse([]byte(`
mirrors:
  named.example.com: {endpoint: ["` + mirror.URL + `"], rewrite: {"^team/(.*)": "copies/$1"}}
  any.example.com: {endpoint: ["` + mirror.URL + `"]}
configs:
  "*": {auth: {username: ann, password: secret}, tls: {insecure_skip_verify: true}}
`))
	if err != nil {
		t.Fatal(err)
	}
	n := newNodeWith(t, func(config *Config) { config.Registries = c })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, image := range []string{"named.example.com/team/app:v1", "any.example.com/app:v1"} {
		if _, err := n.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
			t.Errorf("%s: %v", image, err)
		}
	}
	if _, err := n.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: strings.TrimPrefix(registry.URL, "https://") + "/app:v1"}}); err == nil {
		t.Error("a registry that the file does not name has got credentials")
	}
	own := &cri.PullImageRequest{Image: &cri.ImageSpec{Image: strings.TrimPrefix(registry.URL, "https://") + "/app:v1"}, Auth: &cri.AuthConfig{Username: "pod", Password: "own"}}
	if _, err := n.PullImage(ctx, own); err == nil {
		t.Error("the file's credentials took the place of a pod's")
	}
	mu.Lock()
	defer mu.Unlock()
	if !users["mirror"]["ann"] || users["registry"]["ann"] || !users["registry"][""] || !users["registry"]["pod"] {
		t.Errorf("who asked: %v", users)
	}
}

// TestPulls: while a layer is on its way its image is shown with what of it is there.
func TestPulls(t *testing.T) {
	if isolated(t) {
		return
	}
	hold, held := make(chan struct{}), make(chan struct{})
	var once sync.Once
	inner := imageRegistry(t, func(*http.Request) bool { return true })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		inner.ServeHTTP(answer, r)
		body := answer.Body.Bytes()
		for k, v := range answer.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(answer.Code)
		if strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet && bytes.HasPrefix(body, []byte{0x1f, 0x8b}) { // the layer
			_, _ = w.Write(body[:10])
			w.(http.Flusher).Flush()
			once.Do(func() { close(held) })
			<-hold
			body = body[10:]
		}
		_, _ = w.Write(body)
	}))
	defer server.Close()
	c, err := registries.Parse([]byte(`mirrors: {"*": {endpoint: ["` + server.URL + `"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	c.NoDefault = true
	n := newNodeWith(t, func(config *Config) { config.Registries = c })
	images, err := OpenImages(n.config.withDefaultsForTest(t).Socket(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer images.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pulled := make(chan error, 1)
	go func() {
		_, err := images.Pull(ctx, "any.example.com/team/app:v1")
		pulled <- err
	}()
	select {
	case <-held:
	case err := <-pulled:
		t.Fatal(err)
	}
	var p Pull
	for found := false; !found || p.Done == 0; runtime.Gosched() {
		if p, found, err = images.PullOf(ctx, "any.example.com/team/app:v1"); err != nil {
			t.Fatal(err)
		}
	}
	if p.Repository != "any.example.com/team/app" || p.Done >= p.Total || p.Since.IsZero() {
		t.Errorf("%+v", p)
	}
	if _, found, err := images.PullOf(ctx, "any.example.com/team/app2:v1"); found || err != nil {
		t.Error(found, err)
	}
	close(hold)
	if err := <-pulled; err != nil {
		t.Fatal(err)
	}
	if all, err := images.Pulls(ctx); len(all) > 0 || err != nil {
		t.Errorf("after the pull: %+v, %v", all, err)
	}
}

// imageRegistry serves one image of one small layer under every name, to those who may.
func imageRegistry(t *testing.T, may func(*http.Request) bool) http.Handler {
	t.Helper()
	files := map[string][]byte{}
	add := func(kind string, b []byte) ocispec.Descriptor {
		d := digest.FromBytes(b)
		files[d.String()] = b
		return ocispec.Descriptor{MediaType: kind, Digest: d, Size: int64(len(b))}
	}
	object := func(kind string, v any) ocispec.Descriptor {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return add(kind, b)
	}
	layer, err := tarOf(file{"hello", 0o644, []byte("hello")})
	if err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(layer); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	platform := ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	manifest := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{add(ocispec.MediaTypeImageLayerGzip, zipped.Bytes())}}
	manifest.SchemaVersion = 2
	manifest.Config = object(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: platform, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}}})
	top := object(manifest.MediaType, manifest)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !may(r) {
			w.Header().Set("Www-Authenticate", `Basic realm="test"`)
			http.Error(w, "who?", http.StatusUnauthorized)
			return
		}
		of := filepath.Base(r.URL.Path)
		kind := "application/octet-stream"
		if strings.Contains(r.URL.Path, "/manifests/") {
			if kind = top.MediaType; of == "v1" {
				of = top.Digest.String()
			}
		}
		b, ok := files[of]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Docker-Content-Digest", of)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	})
}
