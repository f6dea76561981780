package containerruntime

import (
	"bytes"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// contentOf makes containerd's content as the runtime loads it.
func contentOf(t *testing.T) content.Store {
	t.Helper()
	found := registry.Graph(func(p *plugin.Registration) bool { return p.Type != plugins.ContentPlugin })
	if len(found) == 0 {
		t.Fatal("no content is linked in")
	}
	p := bounded(found[0])
	ic := plugin.NewContext(t.Context(), plugin.NewPluginSet(), map[string]string{plugins.PropertyRootDir: t.TempDir()})
	instance, err := p.Init(ic).Instance()
	if err != nil {
		t.Fatal(err)
	}
	return instance.(content.Store)
}

// TestImageDocumentsAreBounded: an image says how large its manifest and its
// configuration are, and what type they are of. Layers may be of any size.
func TestImageDocumentsAreBounded(t *testing.T) {
	store := contentOf(t)
	write := func(kind string, data []byte) ocispec.Descriptor {
		t.Helper()
		d := ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(data), Size: int64(len(data))}
		written := ocispec.Descriptor{Digest: d.Digest, Size: d.Size} // of no type: it is large
		if err := content.WriteBlob(t.Context(), store, d.Digest.String(), bytes.NewReader(data), written); err != nil {
			t.Fatal(err)
		}
		return d
	}
	encode := func(v any) []byte {
		t.Helper()
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	config := func(padding int) []byte {
		return encode(ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, Author: strings.Repeat("x", padding)})
	}
	manifest := func(c ocispec.Descriptor, padding int) ocispec.Descriptor {
		m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: c, Annotations: map[string]string{"a": strings.Repeat("x", padding)}}
		return write(m.MediaType, encode(m))
	}
	small, large := config(0), config(maxConfig)
	index := func(padding int) ocispec.Descriptor {
		i := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Annotations: map[string]string{"a": strings.Repeat("x", padding)},
			Manifests: []ocispec.Descriptor{manifest(write(ocispec.MediaTypeImageConfig, small), 7)}}
		return write(i.MediaType, encode(i))
	}
	// list is a document with as many parts, of two lists that are read into one.
	list := func(kind, field, again string, first, second int) ocispec.Descriptor {
		of := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("{},", n), ",") + "]" }
		return write(kind, []byte(`{"`+field+`":`+of(first)+`,"`+again+`":`+of(second)+`}`))
	}
	// inline is an index that has in it a manifest of a configuration of that type.
	inline := func(c ocispec.Descriptor) ocispec.Descriptor {
		b := encode(ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: c})
		d := write(ocispec.MediaTypeImageManifest, b)
		d.Data, d.Platform = b, &ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
		return write(ocispec.MediaTypeImageIndex, encode(ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{d}}))
	}
	holding := func(b []byte) ocispec.Descriptor {
		return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(b), Size: int64(len(b)), Data: b}
	}
	for name, c := range map[string]struct {
		target ocispec.Descriptor
		ok     bool
	}{
		"a manifest in an index": {inline(write(ocispec.MediaTypeImageConfig, small)), true},
		"a manifest in an index that calls its configuration a layer": {inline(write(ocispec.MediaTypeImageLayer, large)), false},
		"a configuration in a manifest":                               {manifest(holding(small), 0), true},
		"a large configuration in a manifest":                         {manifest(holding(large), 0), false},
		"a manifest of many layers":                                   {list(ocispec.MediaTypeImageManifest, "layers", "layers", maxLayers, 1), false},
		"a manifest of many layers, then of one":                      {list(ocispec.MediaTypeImageManifest, "layers", "Layers", maxLayers+1, 1), false},
		"an index of many manifests":                                  {list(ocispec.MediaTypeImageIndex, "manifests", "annotations", maxParts+1, 1), false},
		"an image":                                                    {manifest(write(ocispec.MediaTypeImageConfig, small), 0), true},
		"an index":                                                    {index(1), true},
		"a large manifest":                                            {manifest(write(ocispec.MediaTypeImageConfig, small), maxManifest), false},
		"a large index":                                               {index(maxManifest), false},
		"a large configuration":                                       {manifest(write(ocispec.MediaTypeImageConfig, large), 0), false},
		"a configuration of some type":                                {manifest(write("application/json", large), 0), false},
		"a configuration without type":                                {manifest(write("", large), 0), false},
		"a configuration that says it is a layer":                     {manifest(write(ocispec.MediaTypeImageLayer, large), 0), false},
	} {
		image := images.Image{Target: c.target}
		_, err := image.RootFS(t.Context(), store, platforms.Default())
		if c.ok && err != nil || !c.ok && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	layer := write(ocispec.MediaTypeImageLayerGzip, bytes.Repeat([]byte("layer"), maxManifest))
	for _, d := range []ocispec.Descriptor{layer, {Digest: layer.Digest}} {
		r, err := store.ReaderAt(t.Context(), d)
		if err != nil {
			t.Errorf("a layer, type %q: %v", d.MediaType, err)
			continue
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestImageDocumentsAreBoundedAtEntry: what says of itself that it is too large to be read gets
// no place on the disk.
func TestImageDocumentsAreBoundedAtEntry(t *testing.T) {
	store := contentOf(t)
	for kind, most := range map[string]int64{
		ocispec.MediaTypeImageManifest:            maxManifest,
		ocispec.MediaTypeImageIndex:               maxManifest,
		images.MediaTypeDockerSchema2ManifestList: maxManifest,
		ocispec.MediaTypeImageConfig:              maxConfig,
		images.MediaTypeDockerSchema2Config:       maxConfig,
		ocispec.MediaTypeImageLayer:               -1,
		"":                                        -1,
	} {
		for size, ok := range map[int64]bool{most: true, most + 1: most < 0, 1 << 40: most < 0} {
			w, err := store.Writer(t.Context(), content.WithRef("one"), content.WithDescriptor(ocispec.Descriptor{MediaType: kind, Size: size}))
			if ok != (err == nil) || err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Errorf("%q of %d bytes: %v", kind, size, err)
			}
			if err == nil {
				w.Close()
			}
		}
	}
}
