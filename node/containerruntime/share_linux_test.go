package containerruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/containerruntime/registries"
)

// TestShare: a node gives away what is public, by the name it is public under, and nothing
// else that it has; another gets the whole image by that.
func TestShare(t *testing.T) {
	if isolated(t) {
		return
	}
	registry := httptest.NewServer(imageRegistry(t, func(*http.Request) bool { return true }))
	defer registry.Close()
	c, err := registries.Parse([]byte(`mirrors: {"*": {endpoint: ["` + registry.URL + `"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	c.NoDefault = true
	n := newNodeWith(t, func(config *Config) { config.Registries = c })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const open, private = "any.example.com/open/app:v1", "any.example.com/private/app:v1"
	for _, image := range []string{open, private} {
		if _, err := n.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
			t.Fatal(err)
		}
	}
	images, err := OpenImages(n.config.withDefaultsForTest(t).Socket(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer images.Close()
	keepsPins(t, images, open, func() error {
		_, err := n.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: open}})
		return err
	})
	share := images.Share(func(name, id string) bool { return strings.HasPrefix(name, "any.example.com/open/") && id != "" })
	ask := func(method, url string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		share.ServeHTTP(w, httptest.NewRequest(method, url, nil))
		return w
	}
	tagged := ask("GET", "/v2/open/app/manifests/v1?ns=any.example.com")
	var manifest ocispec.Manifest
	if err := json.Unmarshal(tagged.Body.Bytes(), &manifest); err != nil || tagged.Code != 200 {
		t.Fatalf("%d %s: %v", tagged.Code, tagged.Body, err)
	}
	layer, digest := manifest.Layers[0].Digest.String(), tagged.Header().Get("Docker-Content-Digest")
	for url, want := range map[string]int{
		"/v2/": 200,
		"/v2/open/app/manifests/" + digest + "?ns=any.example.com":                     200,
		"/v2/open/app/blobs/" + layer + "?ns=any.example.com":                          200,
		"/v2/open/app/blobs/" + layer + "?ns=other.example.com":                        404,
		"/v2/open/app/blobs/" + layer:                                                  404,
		"/v2/private/app/manifests/v1?ns=any.example.com":                              404,
		"/v2/private/app/blobs/" + layer + "?ns=any.example.com":                       404,
		"/v2/open/app/manifests/v2?ns=any.example.com":                                 404,
		"/v2/open/app/tags/list?ns=any.example.com":                                    404,
		"/v2/open/app/blobs/sha256:" + strings.Repeat("0", 64) + "?ns=any.example.com": 404,
		"/v2/open/app/blobs/../../private?ns=any.example.com":                          404,
	} {
		if w := ask("HEAD", url); w.Code != want && (want == 200 || w.Code/100 != 3) {
			t.Errorf("%s: %d", url, w.Code)
		}
	}
	if w := ask("POST", "/v2/open/app/blobs/uploads/?ns=any.example.com"); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("a write: %d", w.Code)
	}

	other := &otherNode{answers: map[string]*httptest.ResponseRecorder{}, asked: map[string]bool{}}
	for _, path := range []string{"manifests/v1", "manifests/" + digest, "blobs/" + layer, "blobs/" + manifest.Config.Digest.String()} {
		path = "/v2/open/app/" + path
		other.answers[path] = ask("GET", path+"?ns=any.example.com")
	}
	server := httptest.NewTLSServer(other)
	defer server.Close()
	for _, image := range []string{open, private} {
		if err := images.RemoveImage(ctx, image); err != nil {
			t.Fatal(err)
		}
	}
	gone := "127.0.0.1:1"
	if err := images.PullFrom(ctx, open, []string{gone, server.Listener.Addr().String()}, server.Client(), true); err != nil {
		t.Fatal(err)
	}
	if got := slices.Collect(maps.Keys(other.asked)); !slices.Equal(got, []string{"any.example.com"}) {
		t.Errorf("asked for images of %q", got)
	}
	n.asPulled(t, images, open, digest, manifest.Config.Digest.String())
	keepsPins(t, images, open, func() error {
		return images.PullFrom(ctx, open, []string{server.Listener.Addr().String()}, server.Client(), true)
	})

	pullUntrusted(t, images, open, digest, server)

	// A node that lies about what is in a layer is not believed.
	if err := images.RemoveImage(ctx, open); err != nil {
		t.Fatal(err)
	}
	lie := other.answers["/v2/open/app/blobs/"+layer]
	lie.Body = bytes.NewBuffer(bytes.Repeat([]byte{1}, lie.Body.Len()))
	if err := images.PullFrom(ctx, open, []string{server.Listener.Addr().String()}, server.Client(), true); err == nil {
		t.Error("a layer with another digest is taken")
	}
}

// pullUntrusted: where nodes are not trusted, one alone is asked by digest only.
func pullUntrusted(t *testing.T, images *Images, name, digest string, server *httptest.Server) {
	t.Helper()
	repository, _, _ := strings.Cut(name, ":")
	alone := []string{server.Listener.Addr().String()}
	if err := images.RemoveImage(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if err := images.PullFrom(t.Context(), name, alone, server.Client(), false); err == nil {
		t.Error("one node alone says what a tag stands for")
	}
	if err := images.PullFrom(t.Context(), repository+"@"+digest, alone, server.Client(), false); err != nil {
		t.Error(err)
	}
	if err := images.PullFrom(t.Context(), name, alone, server.Client(), true); err != nil {
		t.Fatal(err)
	}
}

// otherNode answers what this one did before its images were removed, as a process runs one
// runtime.
type otherNode struct {
	mu      sync.Mutex
	asked   map[string]bool // registries
	answers map[string]*httptest.ResponseRecorder
}

func (o *otherNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked[r.URL.Query().Get("ns")] = true
	a := o.answers[r.URL.Path]
	if a == nil {
		http.NotFound(w, r)
		return
	}
	for _, name := range []string{"Content-Type", "Docker-Content-Digest"} {
		w.Header().Set(name, a.Header().Get(name))
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.Body.Bytes()))
}

// asPulled: an image from another node is known as one from its registry would be.
func (n *node) asPulled(t *testing.T, i *Images, name, digest, id string) {
	t.Helper()
	status, err := n.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if err != nil || status.Image == nil || status.Image.Id != id || status.Image.Pinned {
		t.Errorf("%v, %v", status, err)
	}
	if named, err := i.Has(t.Context(), id); err != nil || !named {
		t.Errorf("the image is not named by its id: a pod cannot mount it; %v", err)
	}
	repository, _, _ := strings.Cut(name, ":")
	if want := []string{repository + "@" + digest}; !slices.Equal(status.Image.GetRepoDigests(), want) {
		t.Errorf("digests %q, want %q", status.Image.GetRepoDigests(), want)
	}
}

// keepsPins: an image stays pinned when it is pulled again, by a user as by a directory, which
// does not take the user's for its own.
func keepsPins(t *testing.T, i *Images, name string, pull func() error) {
	t.Helper()
	for what, labels := range map[string]map[string]string{
		"a user":      {pinnedLabel: "pinned"},
		"a directory": {pinnedLabel: "pinned", directoryLabel: "true"},
		"nobody":      {pinnedLabel: ""},
	} {
		if err := i.label(t.Context(), name, labels); err != nil {
			t.Fatal(err)
		}
		if err := pull(); err != nil {
			t.Fatal(err)
		}
		image, _, err := i.stored(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []string{pinnedLabel, directoryLabel} {
			if image.Labels[l] != labels[l] {
				t.Errorf("of an image that is pinned by %s a pull leaves %v", what, image.Labels)
			}
		}
		if err := i.label(t.Context(), name, map[string]string{pinnedLabel: "", directoryLabel: ""}); err != nil {
			t.Fatal(err)
		}
	}
}
