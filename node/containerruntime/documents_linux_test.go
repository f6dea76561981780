package containerruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/programs"
)

// TestLargeManifestIsRefused: the runtime that runs has the bounds.
func TestLargeManifestIsRefused(t *testing.T) {
	if isolated(t) {
		return
	}
	n := newNode(t)
	var files []file
	add := func(kind string, v any) ocispec.Descriptor {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file{"blobs/sha256/" + digest.FromBytes(b).Encoded(), 0o644, b})
		return ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(b), Size: int64(len(b))}
	}
	platform := ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	manifest := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{}, Annotations: map[string]string{"a": strings.Repeat("x", maxManifest)}}
	manifest.SchemaVersion = 2
	manifest.Config = add(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: platform, RootFS: ocispec.RootFS{Type: "layers"}})
	entry := add(manifest.MediaType, manifest)
	entry.Platform, entry.Annotations = &platform, map[string]string{"io.containerd.image.name": "example.com/large:1"}
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{entry}}
	index.SchemaVersion = 2
	b, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := tarOf(append(files, file{ocispec.ImageLayoutFile, 0o644, []byte(`{"imageLayoutVersion":"` + ocispec.ImageLayoutVersion + `"}`)},
		file{ocispec.ImageIndexFile, 0o644, b})...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Another client than ours, as ctr is, loads it unread.
	client, err := containerd.NewWithConn(n.conn, containerd.WithDefaultNamespace(imageNamespace))
	if err != nil {
		t.Fatal(err)
	}
	snapshotter, err := runningSnapshotter(client)
	if err != nil {
		t.Fatal(err)
	}
	images := &Images{client: client, snapshotter: snapshotter}
	// The CRI learns of images one after the other: it has looked at the first
	// once it shows the second.
	program, err := programs.Read(programs.Pause)
	if err != nil {
		t.Fatal(err)
	}
	const large, small = "example.com/large:1", "example.com/small:1"
	second, _, err := pauseArchive(small, program)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = images.load(ctx, bytes.NewReader(archive), nil, nil) // who reads the manifest first refuses it
	if _, err := images.load(ctx, bytes.NewReader(second), nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := waitForImage(ctx, n.ImageServiceClient, small); err != nil {
		t.Fatal(err)
	}
	status, err := n.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: large}})
	if err != nil || status.Image != nil {
		t.Errorf("the runtime shows %v, %v", status.GetImage(), err)
	}
}
