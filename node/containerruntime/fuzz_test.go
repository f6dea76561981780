package containerruntime

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// FuzzDocument: what containerd decodes of a manifest or an index that is let through has
// few parts, and no configuration that would be read without a bound.
func FuzzDocument(f *testing.F) {
	for _, seed := range []string{
		`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:1","size":1},"layers":[{},{}]}`,
		`{"config":{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:1"},"Config":{"data":"e30="}}`,
		`{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","data":"eyJjb25maWciOnsiZGlnZXN0IjoieCJ9fQ=="}],"Manifests":[{}]}`,
		`{"layers":[{"data":"e30="},null,{}],"layers":5,"config":{"digest":"x"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if checkDocument(bytes.NewReader(b)) == nil {
			bearable(t, b)
		}
	})
}

// bearable reports what checkDocument should have refused, in the data of a document too.
func bearable(t *testing.T, b []byte) {
	t.Helper()
	var m struct {
		ocispec.Manifest
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if json.Unmarshal(b, &m) != nil {
		return
	}
	if len(m.Layers) > maxLayers || len(m.Manifests) > maxParts {
		t.Errorf("%d layers, %d manifests", len(m.Layers), len(m.Manifests))
	}
	if kind := m.Config.MediaType; images.IsLayerType(kind) || kind == "" && m.Config.Digest != "" || len(m.Config.Data) > maxConfig {
		t.Errorf("a configuration of type %q, with %d bytes of data", kind, len(m.Config.Data))
	}
	for _, d := range append(append(m.Manifests, m.Layers...), m.Config) {
		if len(d.Data) > 0 {
			bearable(t, d.Data)
		}
	}
}

// FuzzHeaders: the headers that are bounded are those that archive/tar reads, and what is
// within the bounds is passed on as it is.
func FuzzHeaders(f *testing.F) {
	all := pieces()
	for _, piece := range all {
		f.Add(append(piece, all["file, one byte"]...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = agree(t, summed(b), func(r io.Reader) io.Reader { return r })
	})
}

// summed gives blocks that have the place of a header's sum the right one: a fuzzer would
// hardly find it.
func summed(b []byte) []byte {
	b = bytes.Clone(b)
	for at := 0; at+512 <= len(b); at += 512 {
		if block := b[at : at+512]; block[154] == 0 && string(block[257:262]) == "ustar" {
			withSum(block)
		}
	}
	return b
}
