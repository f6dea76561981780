package containerruntime

import (
	"context"
	"crypto/rand"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// zstdImage is an image whose layer declares a window of 2^log bytes.
func (h *hostile) zstdImage(kind string, log byte) (image, layer ocispec.Descriptor) {
	h.t.Helper()
	plain, err := tarOf(file{"hello", 0o644, []byte(rand.Text())})
	if err != nil {
		h.t.Fatal(err)
	}
	layer = h.add(kind, zstdFrame(log, plain))
	return h.manifest(h.config(digest.FromBytes(plain)), layer), layer
}

// archive is an image's, with all that this registry has.
func (h *hostile) archive(name string, image ocispec.Descriptor) string {
	h.t.Helper()
	here := platforms.DefaultSpec()
	image.Platform, image.Annotations = &here, map[string]string{"io.containerd.image.name": name}
	files := []file{
		{ocispec.ImageLayoutFile, 0o644, []byte(`{"imageLayoutVersion":"` + ocispec.ImageLayoutVersion + `"}`)},
		{ocispec.ImageIndexFile, 0o644, encoded(h.t, index(image))},
	}
	for d, b := range h.blobs {
		files = append(files, file{path.Join(ocispec.ImageBlobsDir, strings.Replace(d, ":", "/", 1)), 0o644, b})
	}
	b, err := tarOf(files...)
	to := filepath.Join(h.t.TempDir(), "images.tar")
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return to
}

// TestZstdWindow: a layer says how much memory it takes to unpack it. Half a gigabyte is
// refused, whatever the layer is called and wherever it is from, and the error says why.
func TestZstdWindow(t *testing.T) {
	if isolated(t) {
		return
	}
	h := newHostile(t)
	_, i, _, peer := puller(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for from, pull := range map[string]func(name string, image ocispec.Descriptor) error{
		"registry": func(name string, _ ocispec.Descriptor) error { _, err := i.Pull(ctx, name); return err },
		"nodes": func(name string, _ ocispec.Descriptor) error {
			return i.PullFrom(ctx, name, []string{peer.Listener.Addr().String()}, peer.Client(), true)
		},
		"archive": func(name string, image ocispec.Descriptor) error {
			names, err := i.LoadPinned(ctx, h.archive(name, image))
			if !slices.Equal(names, []string{name}) {
				t.Errorf("%v are said to be pinned, not %s: %v", names, name, err)
			}
			return err
		},
	} {
		for _, kind := range []string{ocispec.MediaTypeImageLayerZstd, ocispec.MediaTypeImageLayerGzip, images.MediaTypeDockerSchema2Layer} {
			for log, name := range map[byte]string{23: "common", 27: "largest", 29: "too-large"} {
				image, layer := h.zstdImage(kind, log)
				what := from + " " + kind + " " + name
				name = from + "-" + strings.ToLower(rand.Text())
				h.tags[name] = image
				if log < 29 {
					if err := pull("example.com/"+name+":v1", image); err != nil {
						t.Errorf("%s: %v", what, err)
					}
					continue
				}
				little(t, what, func() {
					err := pull("example.com/"+name+":v1", image)
					if err == nil {
						t.Errorf("%s: it is unpacked", what)
						return
					}
					of := layer.Digest.String()
					if from == "archive" {
						of = "example.com/" + name // containerd's client says no more
					}
					for _, want := range []string{of, "compressed by zstd with a window of more than 128 MiB"} {
						if !strings.Contains(err.Error(), want) {
							t.Errorf("%s: without %q: %v", what, want, err)
						}
					}
				})
			}
		}
	}
}
