package containerruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// maxManifest is what registries take, and containerd of a manifest that it
	// was not told the digest of.
	maxManifest = 4 << 20
	// maxConfig bounds the configuration of an image, of which containerd keeps
	// the decoded form, many times as large, for as long as it has the image.
	maxConfig = 1 << 20
)

// A documentStore is containerd's content with bounds on what it reads as a
// whole. Who makes an image says how large its manifests and its configuration
// are, and whoever may run a pod names the image; containerd allocates what they
// say, and in this process that would end the control plane. Layers, which are
// read piece by piece, may be of any size.
type documentStore struct{ content.Store }

// ReaderAt opens content. containerd reads a configuration by whatever type the
// manifest gives it, so that a manifest which calls its configuration a layer is
// refused, as is all else that is large and no layer.
func (s documentStore) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	r, err := s.Store.ReaderAt(ctx, desc)
	if err != nil || desc.MediaType == "" || images.IsLayerType(desc.MediaType) {
		return r, err
	}
	manifest := images.IsManifestType(desc.MediaType)
	most := int64(maxConfig)
	if manifest || images.IsIndexType(desc.MediaType) {
		most = maxManifest
	}
	if size := r.Size(); size > most {
		err = fmt.Errorf("%s of %d bytes is larger than %d bytes: %w", desc.MediaType, size, most, errdefs.ErrInvalidArgument)
	} else if manifest {
		err = checkManifest(r)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// checkManifest refuses a manifest whose configuration would be read without a
// bound. What is no manifest at all containerd itself says.
func checkManifest(r content.ReaderAt) error {
	var m struct {
		Config ocispec.Descriptor `json:"config"`
	}
	if json.NewDecoder(io.NewSectionReader(r, 0, r.Size())).Decode(&m) != nil {
		return nil
	}
	if t := m.Config.MediaType; images.IsLayerType(t) || t == "" && m.Config.Digest != "" {
		return fmt.Errorf("manifest with a configuration of type %q: %w", t, errdefs.ErrInvalidArgument)
	}
	return nil
}

// bounded gives a plugin that offers content those bounds.
func bounded(p plugin.Registration) plugin.Registration {
	if p.Type != plugins.ContentPlugin {
		return p
	}
	begin := p.InitFn
	p.InitFn = func(ic *plugin.InitContext) (any, error) {
		instance, err := begin(ic)
		if store, ok := instance.(content.Store); ok && err == nil {
			return documentStore{store}, nil
		}
		return instance, err
	}
	return p
}
