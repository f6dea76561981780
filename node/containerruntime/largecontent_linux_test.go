package containerruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// largeContent is how large the content is that is called a manifest, in bytes.
const largeContent = 64 << 20

// largeNode is a node that has, as the layer of some image, content which is large.
type largeNode struct {
	*node
	images *Images
	ctx    context.Context // in the images' namespace
	large  ocispec.Descriptor
}

func newLargeNode(t *testing.T) *largeNode {
	t.Helper()
	n := newNode(t)
	opened, err := OpenImages(n.config.withDefaultsForTest(t).Socket(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })
	l := &largeNode{node: n, images: opened, ctx: namespaces.WithNamespace(t.Context(), imageNamespace)}
	l.large = l.write(t, ocispec.MediaTypeImageManifest, bytes.Repeat([]byte(" "), largeContent))
	return l
}

// write stores content that is not collected.
func (l *largeNode) write(t *testing.T, kind string, b []byte) ocispec.Descriptor {
	t.Helper()
	d := ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(b), Size: int64(len(b))}
	keep := content.WithLabels(map[string]string{"containerd.io/gc.root": "test"})
	written := ocispec.Descriptor{Digest: d.Digest, Size: d.Size} // of no type: it is large
	if err := content.WriteBlob(l.ctx, l.images.client.ContentStore(), d.Digest.String(), bytes.NewReader(b), written, keep); err != nil {
		t.Fatal(err)
	}
	return d
}

func (l *largeNode) writeJSON(t *testing.T, kind string, v any) ocispec.Descriptor {
	t.Helper()
	return l.write(t, kind, encoded(t, v))
}

// index describes an index of these manifests.
func index(manifests ...ocispec.Descriptor) ocispec.Index {
	i := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: manifests}
	i.SchemaVersion = 2
	return i
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// create names an image, which the CRI knows of then, and gives its id.
func (l *largeNode) create(t *testing.T, name string, target ocispec.Descriptor) (id string) {
	t.Helper()
	if _, err := l.images.client.ImageService().Create(l.ctx, images.Image{Name: name, Target: target}); err != nil {
		t.Fatal(err)
	}
	if err := waitForImage(l.ctx, l.ImageServiceClient, name); err != nil {
		t.Fatal(err)
	}
	known, err := l.ImageStatus(l.ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if err != nil {
		t.Fatal(err)
	}
	return known.Image.Id
}

// little reports what allocates as much as the large content takes.
func little(t *testing.T, what string, do func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > largeContent/2 {
		t.Errorf("%s: %d MiB were allocated", what, got>>20)
	}
}

// refused wants an error that says what is too large.
func refused(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "bytes is larger than 4194304 bytes") {
		t.Errorf("%s: %v", what, err)
	}
}

// TestLargeContentCalledManifest: an image, an archive or another node calls large content a
// manifest, by way of containerd's API, where content has no type.
func TestLargeContentCalledManifest(t *testing.T) {
	if isolated(t) {
		return
	}
	l := newLargeNode(t)
	l.loadLarge(t)
	l.pullLarge(t)
	l.shareLarge(t)
}

func (l *largeNode) loadLarge(t *testing.T) {
	t.Helper()
	platform := platforms.DefaultSpec()
	entry := l.large
	entry.Platform, entry.Annotations = &platform, map[string]string{"io.containerd.image.name": "knarr.test/loaded:1"}
	for what, layout := range map[string][]byte{
		"a manifest of an archive": encoded(t, index(entry)),
		"the index of an archive":  bytes.Repeat([]byte(" "), maxManifest+1),
	} {
		archive, err := tarOf(file{ocispec.ImageLayoutFile, 0o644, []byte(`{"imageLayoutVersion":"` + ocispec.ImageLayoutVersion + `"}`)},
			file{ocispec.ImageIndexFile, 0o644, layout})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "images.tar")
		if err := os.WriteFile(path, archive, 0o600); err != nil {
			t.Fatal(err)
		}
		little(t, what, func() {
			_, err := l.images.LoadPinned(l.ctx, path)
			refused(t, what, err)
		})
	}
}

func (l *largeNode) pullLarge(t *testing.T) {
	t.Helper()
	b := encoded(t, index(l.large))
	peer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
		w.Header().Set(digestHeader, digest.FromBytes(b).String())
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}))
	defer peer.Close()
	little(t, "another node's image", func() {
		refused(t, "another node's image", l.images.PullFrom(l.ctx, "knarr.test/pulled:1", []string{peer.Listener.Addr().String()}, peer.Client(), true))
	})
}

func (l *largeNode) shareLarge(t *testing.T) {
	t.Helper()
	service := l.images.client.ImageService()
	own, err := service.Get(l.ctx, DefaultSandboxImage)
	if err != nil {
		t.Fatal(err)
	}
	config, err := own.Config(l.ctx, l.images.client.ContentStore(), platforms.Default())
	if err != nil {
		t.Fatal(err)
	}
	here := platforms.DefaultSpec()
	own.Target.Platform = &here
	elsewhere, anywhere := l.large, l.large
	elsewhere.Platform = &ocispec.Platform{OS: "plan9", Architecture: "mips"}
	absent := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("absent"), Size: 6, Platform: &ocispec.Platform{OS: "linux", Architecture: "mips"}}
	share := l.images.Share(func(string, string) bool { return true })
	for repository, c := range map[string]struct {
		first ocispec.Descriptor
		want  int
	}{
		"elsewhere": {elsewhere, http.StatusNotFound}, // whatever else has that digest
		"anywhere":  {anywhere, http.StatusOK},        // content is given away as it is asked for
	} {
		target := l.writeJSON(t, ocispec.MediaTypeImageIndex, index(c.first, absent, own.Target))
		l.create(t, "knarr.test/"+repository+":1", target)
		for path, want := range map[string]int{
			"blobs/" + config.Digest.String():         http.StatusOK,
			"manifests/" + target.Digest.String():     http.StatusOK,
			"manifests/" + own.Target.Digest.String(): http.StatusOK,
			"manifests/" + absent.Digest.String():     http.StatusNotFound,
			"blobs/" + l.large.Digest.String():        c.want,
		} {
			w := httptest.NewRecorder()
			little(t, repository+" "+path, func() {
				share.ServeHTTP(w, httptest.NewRequest("HEAD", "/v2/"+repository+"/"+path+"?ns=knarr.test", nil))
			})
			if w.Code != want {
				t.Errorf("%s %s: %d, not %d", repository, path, w.Code, want)
			}
		}
	}
}

// TestTagOfLargeContent: a registry calls a layer by an image's tag, which is then stored,
// and containerd reads as a whole what is to be a container's image.
func TestTagOfLargeContent(t *testing.T) {
	if isolated(t) {
		return
	}
	l := newLargeNode(t)
	service, store := l.images.client.ImageService(), l.images.client.ContentStore()
	own, err := service.Get(l.ctx, DefaultSandboxImage)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := images.Manifest(l.ctx, store, own.Target, platforms.Default())
	if err != nil {
		t.Fatal(err)
	}
	// Another configuration makes it another image.
	b, err := content.ReadBlob(l.ctx, store, manifest.Config)
	if err != nil {
		t.Fatal(err)
	}
	var config ocispec.Image
	if err := json.Unmarshal(b, &config); err != nil {
		t.Fatal(err)
	}
	config.Author = "somebody"
	manifest.Config = l.writeJSON(t, ocispec.MediaTypeImageConfig, config)
	target := l.writeJSON(t, ocispec.MediaTypeImageManifest, manifest)
	const name = "knarr.test/moved:1"
	id := l.create(t, name, target)
	criu, none := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(criu, "criu"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"application/x-unknown", ocispec.MediaTypeImageLayer} {
		moved := images.Image{Name: name, Target: ocispec.Descriptor{MediaType: kind, Digest: l.large.Digest, Size: 100}}
		if _, err := service.Update(l.ctx, moved, "target"); err != nil {
			t.Fatal(err)
		}
		if _, err := service.Get(l.ctx, name); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), `is of type "`+kind+`", neither a manifest nor an index`) {
			t.Errorf("%s: %v", kind, err)
		}
		for pod, path := range map[string]string{"with-criu": criu, "without-criu": none} {
			t.Setenv("PATH", path)
			pod = filepath.Base(kind) + "-" + pod
			little(t, pod, func() {
				if _, _, err := l.podOf(l.ctx, pod, name); status.Code(err) != codes.NotFound {
					t.Errorf("%s: %v", pod, err)
				}
				// The kubelet names an image that was there before by its id.
				if _, _, err := l.podOf(l.ctx, pod+"-id", id); err != nil && status.Code(err) != codes.NotFound {
					t.Errorf("%s: %v", pod, err)
				}
			})
		}
	}
	// The tag is moved back.
	if _, err := service.Update(l.ctx, images.Image{Name: name, Target: target}, "target"); err != nil {
		t.Fatal(err)
	}
	if err := waitForImage(l.ctx, l.ImageServiceClient, name); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.podOf(l.ctx, "again", name); err != nil {
		t.Error(err)
	}
}
