package containerruntime

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/containerruntime/registries"
)

// A hostile registry serves whatever its owner likes.
type hostile struct {
	t     *testing.T
	blobs map[string][]byte             // by digest
	tags  map[string]ocispec.Descriptor // by repository
	// slow is a digest whose content breaks off until the asker has gone.
	slow    string
	stalled chan struct{}
	// elsewhere counts questions at the address that a layer has of its own.
	elsewhere atomic.Int64
}

func newHostile(t *testing.T) *hostile {
	return &hostile{t: t, blobs: map[string][]byte{}, tags: map[string]ocispec.Descriptor{}, stalled: make(chan struct{}, 100)}
}

func (h *hostile) add(kind string, b []byte) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(b), Size: int64(len(b))}
	h.blobs[d.Digest.String()] = b
	return d
}

func (h *hostile) object(kind string, v any) ocispec.Descriptor { return h.add(kind, encoded(h.t, v)) }

// junk is content like no other.
func (h *hostile) junk(kind string) ocispec.Descriptor {
	return h.add(kind, fmt.Append(nil, rand.Text(), strings.Repeat(" ", 100_000)))
}

// layer is a real one.
func (h *hostile) layer() (d ocispec.Descriptor, diff digest.Digest) {
	h.t.Helper()
	plain, err := tarOf(file{"hello", 0o644, []byte(rand.Text())})
	if err != nil {
		h.t.Fatal(err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(plain); err != nil {
		h.t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		h.t.Fatal(err)
	}
	return h.add(ocispec.MediaTypeImageLayerGzip, zipped.Bytes()), digest.FromBytes(plain)
}

func (h *hostile) config(diffs ...digest.Digest) ocispec.Descriptor {
	return h.object(ocispec.MediaTypeImageConfig, ocispec.Image{Author: rand.Text(),
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: diffs}})
}

func (h *hostile) manifest(config ocispec.Descriptor, layers ...ocispec.Descriptor) ocispec.Descriptor {
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: layers}
	return h.object(m.MediaType, m)
}

func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/elsewhere" {
		h.elsewhere.Add(1)
	}
	if user, _, _ := r.BasicAuth(); user == "" {
		w.Header().Set("Www-Authenticate", `Basic realm="test"`)
	}
	of, kind := filepath.Base(r.URL.Path), "application/octet-stream"
	if strings.Contains(r.URL.Path, "/manifests/") {
		repository := filepath.Base(filepath.Dir(filepath.Dir(r.URL.Path)))
		if d, ok := h.tags[repository]; ok && of == "v1" || of == d.Digest.String() {
			of, kind = d.Digest.String(), d.MediaType
		}
	}
	b, ok := h.blobs[of]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set(digestHeader, of)
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	if r.Method == http.MethodHead {
		return
	}
	if of == h.slow {
		_, _ = w.Write(b[:len(b)/2])
		w.(http.Flusher).Flush()
		h.stalled <- struct{}{}
		<-r.Context().Done()
		return
	}
	_, _ = w.Write(b)
}

// kept is all that a node has of images, once what nobody refers to is collected.
func (n *node) kept(t *testing.T, i *Images) (all []string) {
	t.Helper()
	ctx := namespaces.WithNamespace(t.Context(), imageNamespace)
	service := i.client.LeasesService()
	l, err := service.Create(ctx, leases.WithRandomID())
	if err == nil {
		err = service.Delete(ctx, l, leases.SynchronousDelete)
	}
	if err != nil {
		t.Fatal(err)
	}
	held, err := service.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range held {
		all = append(all, "lease "+l.ID)
	}
	named, err := i.client.ImageService().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range named {
		all = append(all, "image "+image.Name)
	}
	store := i.client.ContentStore()
	if err := store.Walk(ctx, func(info content.Info) error {
		all = append(all, "content "+info.Digest.String())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ingests, err := store.ListStatuses(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range ingests {
		all = append(all, "ingest "+s.Ref)
	}
	if err := i.client.SnapshotService(i.snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		all = append(all, "snapshot "+info.Name)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// puller is a node that has images from one registry alone, its images, that registry, and
// another node, both of which answer so.
func puller(t *testing.T, answer http.Handler) (n *node, i *Images, server, peer *httptest.Server) {
	t.Helper()
	server = httptest.NewServer(answer)
	t.Cleanup(server.Close)
	peer = httptest.NewTLSServer(answer)
	t.Cleanup(peer.Close)
	c, err := registries.Parse([]byte(`mirrors: {"*": {endpoint: ["` + server.URL + `"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	c.NoDefault = true
	n = newNodeWith(t, func(config *Config) { config.Registries = c })
	if i, err = OpenImages(n.config.withDefaultsForTest(t).Socket(), ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	return n, i, server, peer
}

// TestFailedPulls: of an image that cannot be had, or that the CRI does not show, nothing
// stays on the disk; of one that it shows nothing stays once it is removed. So it is with
// images of registries and of other nodes.
func TestFailedPulls(t *testing.T) {
	if isolated(t) {
		return
	}
	h := newHostile(t)
	n, i, server, peer := puller(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	shared, diff := h.layer()
	h.tags["good"] = h.manifest(h.config(diff), shared)
	if _, err := i.Pull(ctx, "example.com/good:v1"); err != nil {
		t.Fatal(err)
	}
	before := n.kept(t, i)

	elsewhere := h.junk(ocispec.MediaTypeImageManifest)
	elsewhere.Platform = &ocispec.Platform{OS: "plan9", Architecture: "mips"}
	other, otherDiff := h.layer()
	h.tags["unknown"] = h.junk("application/x-unknown")
	h.tags["tagged-layer"] = h.junk(ocispec.MediaTypeImageLayerGzip)
	h.tags["index-of-unknown"] = h.object(ocispec.MediaTypeImageIndex, index(h.junk("application/x-unknown")))
	h.tags["index-of-layer"] = h.object(ocispec.MediaTypeImageIndex, index(h.junk(ocispec.MediaTypeImageLayerGzip)))
	h.tags["elsewhere"] = h.object(ocispec.MediaTypeImageIndex, index(elsewhere))
	h.tags["empty"] = h.object(ocispec.MediaTypeImageIndex, index())
	h.tags["no-config"] = h.manifest(h.junk("application/x-unknown"), shared, other)
	h.tags["no-type"] = h.manifest(h.junk(""), shared, other)
	h.tags["more-layers"] = h.manifest(h.config(diff), shared, other)
	h.tags["no-layer"] = h.manifest(h.config(diff, otherDiff), shared, h.junk(ocispec.MediaTypeImageLayerGzip))
	h.tags["unknown-layer"] = h.manifest(h.config(diff), h.junk("application/x-unknown"))
	h.tags["mixed-layers"] = h.manifest(h.config(diff), shared, h.junk("application/x-unknown"))
	h.tags["whole"] = h.manifest(h.config(diff, otherDiff), shared, other)
	absent := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("absent"), Size: 6}
	h.tags["second-absent"] = h.object(ocispec.MediaTypeImageIndex, index(h.tags["whole"], absent)) // the first is run
	elsewhereLayer := other
	elsewhereLayer.URLs = []string{server.URL + "/elsewhere"}
	h.tags["layer-elsewhere"] = h.manifest(h.config(diff, otherDiff), shared, elsewhereLayer) // it is not asked there
	succeed := []string{"whole", "mixed-layers", "second-absent", "layer-elsewhere"}
	pullers := map[string]func(context.Context, string) error{
		"registry": func(ctx context.Context, name string) error { _, err := i.Pull(ctx, name); return err },
		"nodes": func(ctx context.Context, name string) error {
			return i.PullFrom(ctx, name, []string{peer.Listener.Addr().String()}, peer.Client(), true)
		},
	}
	for repository := range h.tags {
		for from, pull := range pullers {
			what, name := repository+" of "+from, "example.com/"+repository+":v1"
			if repository == "good" {
				continue
			}
			if err := pull(ctx, name); (err == nil) != slices.Contains(succeed, repository) && repository != "unknown-layer" {
				t.Errorf("%s: %v", what, err)
			}
			if asked := h.elsewhere.Swap(0); asked > 0 {
				t.Errorf("%s: an address that a layer names is asked", what)
			}
			n.collect(t, i, name)
			if after := n.kept(t, i); !slices.Equal(before, after) {
				t.Fatalf("%s: what is kept:\n%s\ninstead of\n%s", what, strings.Join(after, "\n"), strings.Join(before, "\n"))
			}
		}
	}
	h.slow = other.Digest.String()
	for from, pull := range pullers {
		cut, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- pull(cut, "example.com/whole:v1") }()
		select {
		case <-h.stalled:
		case err := <-ended:
			t.Fatal(err)
		}
		cancel()
		if err := <-ended; err == nil {
			t.Errorf("%s: a pull that was given up succeeds", from)
		}
		after := n.kept(t, i)
		for until := time.Now().Add(20 * time.Second); !slices.Equal(before, after) && time.Now().Before(until); after = n.kept(t, i) {
			<-time.After(10 * time.Millisecond) // the runtime ends the pull when its caller has gone
		}
		if !slices.Equal(before, after) {
			t.Errorf("given up, %s: what is kept:\n%s\ninstead of\n%s", from, strings.Join(after, "\n"), strings.Join(before, "\n"))
		}
	}
	n.leftNames(t, i, h, before)
}

// leftNames: names are removed at a start that a version before left, and none of a user's.
func (n *node) leftNames(t *testing.T, i *Images, h *hostile, before []string) {
	t.Helper()
	ctx := t.Context()
	for name, label := range map[string]string{"left": managedLabel, "loaded": ""} {
		name = "example.com/" + name + ":v1"
		if _, err := i.client.ImageService().Create(namespaces.WithNamespace(ctx, imageNamespace), images.Image{Name: name, Target: h.tags["unknown"]}); err != nil {
			t.Fatal(err)
		}
		if label != "" {
			if err := i.label(ctx, name, map[string]string{label: "managed"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := n.config.withDefaultsForTest(t).removeStray(ctx, n.conn, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	before = append(before, "image example.com/loaded:v1")
	slices.Sort(before)
	if after := n.kept(t, i); !slices.Equal(before, after) {
		t.Errorf("after a start there is:\n%s\ninstead of\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

// collect removes an image as the kubelet does, which knows of those that the CRI shows. One
// that containerd has it does show: it follows its events.
func (n *node) collect(t *testing.T, i *Images, name string) {
	t.Helper()
	there, err := i.Has(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if !there {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), knownTime)
	defer cancel()
	if err := waitForImage(ctx, n.ImageServiceClient, name); err != nil {
		t.Errorf("%s is there, and the CRI does not show it: %v", name, err)
		return
	}
	status, err := n.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if err == nil {
		_, err = n.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: status.Image.Id}})
	}
	if err != nil {
		t.Error(err)
	}
}
