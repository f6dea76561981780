package containerruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/plugins"
	containerdservices "github.com/containerd/containerd/v2/plugins/services"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxManifest is what registries take, and containerd of a manifest that it
	// was not told the digest of.
	maxManifest = 4 << 20
	// maxConfig bounds the configuration of an image, of which containerd keeps
	// the decoded form, many times as large, for as long as it has the image.
	maxConfig = 1 << 20
	// maxParts is how many manifests an index may name: decoded, the shortest takes forty times
	// as much as its text.
	maxParts = 10_000
	// maxLayers is how many layers a manifest may name: each holds a descriptor while the image
	// is pulled. Builders write 127 at most, and the kernel takes not many more.
	maxLayers = 500
)

// A documentStore is containerd's content with bounds on what it reads as a
// whole. Who makes an image says how large its manifests and its configuration
// are, and whoever may run a pod names the image; containerd allocates what they
// say, and in this process that would end the control plane. Layers, which are
// read piece by piece, may be of any size, as may what is opened by digest alone.
type documentStore struct{ content.Store }

// ReaderAt opens content. containerd reads a configuration by whatever type the
// manifest gives it, so that a manifest which calls its configuration a layer is
// refused, as is all else that is large and no layer.
func (s documentStore) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	r, err := s.Store.ReaderAt(ctx, desc)
	if err != nil || desc.MediaType == "" || images.IsLayerType(desc.MediaType) {
		return r, err
	}
	if err = checkSize(desc.MediaType, r.Size()); err == nil && isDocument(desc.MediaType) {
		err = checkDocument(io.NewSectionReader(r, 0, r.Size()))
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Writer begins to write content. A manifest, an index or a configuration that is to be as
// large as ReaderAt would refuse it gets no place on the disk: an index says so of manifests
// that are yet to be fetched.
func (s documentStore) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	if kind := o.Desc.MediaType; isDocument(kind) || images.IsKnownConfig(kind) {
		if err := checkSize(kind, o.Desc.Size); err != nil {
			return nil, err
		}
	}
	return s.Store.Writer(ctx, opts...)
}

// checkSize refuses content that is no layer by its size in bytes.
func checkSize(kind string, size int64) error {
	most := int64(maxConfig)
	if isDocument(kind) {
		most = maxManifest
	}
	if size > most {
		return fmt.Errorf("%s of %d bytes is larger than %d bytes: %w", kind, size, most, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkDocument refuses a manifest or an index with too many parts, one whose configuration
// would be read without a bound, and one in which such a one is: containerd takes the data
// that is in a descriptor instead of opening what it describes. What is neither a manifest
// nor an index containerd itself says.
func checkDocument(r io.Reader) error {
	var m struct {
		Config    ocispec.Descriptor `json:"config"`
		Layers    parts              `json:"layers"`
		Manifests parts              `json:"manifests"`
	}
	err := json.NewDecoder(r).Decode(&m)
	// Lists are decoded in spite of errors elsewhere.
	switch {
	case m.Layers.n > maxLayers:
		return fmt.Errorf("%d layers are more than %d: %w", m.Layers.n, maxLayers, errdefs.ErrInvalidArgument)
	case m.Manifests.n > maxParts:
		return fmt.Errorf("%d manifests are more than %d: %w", m.Manifests.n, maxParts, errdefs.ErrInvalidArgument)
	}
	if inner := errors.Join(m.Layers.err, m.Manifests.err); inner != nil || err != nil {
		return inner
	}
	if t := m.Config.MediaType; images.IsLayerType(t) || t == "" && m.Config.Digest != "" {
		return fmt.Errorf("manifest with a configuration of type %q: %w", t, errdefs.ErrInvalidArgument)
	}
	if n := len(m.Config.Data); n > maxConfig {
		return fmt.Errorf("configuration of %d bytes is larger than %d bytes: %w", n, maxConfig, errdefs.ErrInvalidArgument)
	}
	return checkDocument(bytes.NewReader(m.Config.Data))
}

// parts are how many descriptors are in a list, in all if there are several lists of one
// name, and what is wrong with the data in them.
type parts struct {
	n   int
	err error
}

// UnmarshalJSON returns no error, which would end the look at the rest.
func (p *parts) UnmarshalJSON(b []byte) error {
	var counted []struct{} // takes no memory
	_ = json.Unmarshal(b, &counted)
	if p.n += len(counted); p.n > maxParts {
		return nil
	}
	var list []struct {
		Data []byte `json:"data"`
	}
	_ = json.Unmarshal(b, &list)
	for _, one := range list {
		if len(one.Data) > 0 && p.err == nil {
			p.err = checkDocument(bytes.NewReader(one.Data))
		}
	}
	return nil
}

// isDocument says whether content of a type is a manifest or an index.
func isDocument(kind string) bool { return images.IsManifestType(kind) || images.IsIndexType(kind) }

// connect gives a client of the containerd behind conn with those bounds: over conn content
// is opened by its digest alone, and only the client knows what it was called.
func connect(conn *grpc.ClientConn, opts ...containerd.Opt) (*containerd.Client, error) {
	store := documentStore{proxy.NewContentStore(conn)}
	return containerd.NewWithConn(conn, append(opts, containerd.WithServices(containerd.WithContentStore(store)))...)
}

// An imageService is containerd's images without those that are neither manifest nor index.
// A registry that called a layer's digest a tag had such a one stored by versions before, and
// a user may; containerd looks whether it is a checkpoint by reading all of it.
type imageService struct{ imagesapi.ImagesClient }

func (s imageService) Get(ctx context.Context, req *imagesapi.GetImageRequest, opts ...grpc.CallOption) (*imagesapi.GetImageResponse, error) {
	res, err := s.ImagesClient.Get(ctx, req, opts...)
	if err != nil {
		return nil, err
	}
	if kind := res.GetImage().GetTarget().GetMediaType(); !isDocument(kind) {
		return nil, status.Errorf(codes.NotFound, "image %s is of type %q, neither a manifest nor an index", req.Name, kind)
	}
	return res, nil
}

// bounded gives a plugin that offers content or images those bounds.
func bounded(p plugin.Registration) plugin.Registration {
	if p.Type != plugins.ContentPlugin && (p.Type != plugins.ServicePlugin || p.ID != containerdservices.ImagesService) {
		return p
	}
	return replaced(p, func(_ *plugin.InitContext, theirs any) (any, error) {
		switch of := theirs.(type) {
		case content.Store:
			return documentStore{of}, nil
		case imagesapi.ImagesClient:
			return imageService{of}, nil
		}
		return nil, fmt.Errorf("containerd's %s is a %T", p.URI(), theirs)
	})
}
