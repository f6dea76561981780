package containerruntime

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/usage"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/transfer"
	transferimage "github.com/containerd/containerd/v2/core/transfer/image"
	"github.com/containerd/containerd/v2/core/transfer/registry"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/containerd/v2/plugins"
	containerdservices "github.com/containerd/containerd/v2/plugins/services"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// checkPulled refuses what the CRI cannot show as an image. containerd gives whatever was
// fetched its name, and only then the CRI looks at it; what it cannot read it does not list,
// so that the kubelet never collects it, while the name keeps its content from containerd's
// own collection. Whoever may run a pod names what is fetched. The CRI reads the same.
func checkPulled(ctx context.Context, store content.InfoReaderProvider, target ocispec.Descriptor) error {
	if !isDocument(target.MediaType) {
		return fmt.Errorf("image is of type %q, neither a manifest nor an index: %w", target.MediaType, errdefs.ErrInvalidArgument)
	}
	image, here := images.Image{Target: target}, platforms.Default()
	desc, err := image.Config(ctx, store, here)
	if err != nil {
		return fmt.Errorf("manifest of image: %w", err)
	}
	b, err := content.ReadBlob(ctx, store, desc)
	if err == nil {
		err = json.Unmarshal(b, &ocispec.Image{})
	}
	if err != nil {
		return fmt.Errorf("configuration of image: %w", err)
	}
	if _, err := usage.CalculateImageUsage(ctx, image, store, usage.WithManifestLimit(here, 1), usage.WithManifestUsage()); err != nil {
		return fmt.Errorf("size of image: %w", err)
	}
	return nil
}

// A pulls is containerd's transfers, of which the CRI's images from registries are looked at
// before they get a name. Until then a lease alone keeps what was fetched, which ends with the
// pull. Those that root asks of containerd itself, by ctr, may be for any platform.
type pulls struct {
	transfer.Transferrer
	config  Config
	content content.Store
}

func (p pulls) Transfer(ctx context.Context, source, destination any, opts ...transfer.Opt) error {
	_, fetched := source.(transfer.ImageFetcher)
	pull, ours := ctx.Value(pullKey{}).(*cri.PullImageRequest)
	if to, ok := destination.(*transferimage.Store); ok && fetched && ours {
		destination = pulledImage{to, p.content}
	}
	if from, ok := source.(*registry.OCIRegistry); ok && ours {
		source = p.config.boundedRegistry(ctx, pull, from)
	}
	return p.Transferrer.Transfer(ctx, source, destination, opts...)
}

type imageStore = transferimage.Store

// A pulledImage is where a pull puts its image.
type pulledImage struct {
	*imageStore
	content content.Store
}

// ImageFilter is what of the image is fetched: of an index the one manifest that is run, whose
// size is the image's.
func (i pulledImage) ImageFilter(h images.HandlerFunc, store content.Store) images.HandlerFunc {
	return ownAddress(images.LimitManifests(i.imageStore.ImageFilter(h, store), platforms.Default(), 1)).Handle
}

// ownAddress has nothing fetched from other addresses than its registry's, which a layer may
// name as well: of anything that this node can reach.
func ownAddress(h images.Handler) images.Handler {
	return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		children, err := h.Handle(ctx, desc)
		for n := range children {
			children[n].URLs = nil
		}
		return children, err
	})
}

// Store names the image.
func (i pulledImage) Store(ctx context.Context, target ocispec.Descriptor, store images.Store) ([]images.Image, error) {
	if err := checkPulled(ctx, i.content, target); err != nil {
		return nil, err
	}
	return i.imageStore.Store(ctx, target, pinsKept{store})
}

// A pinsKept is a store of images in which one that is replaced under its name stays pinned: a
// pull is no reason to let the kubelet remove what a file of agent/images or a user has loaded.
type pinsKept struct{ images.Store }

func (s pinsKept) Update(ctx context.Context, image images.Image, fields ...string) (images.Image, error) {
	if len(fields) == 0 && image.Labels[pinnedLabel] == "" {
		old, err := s.Store.Get(ctx, image.Name)
		if err != nil {
			return images.Image{}, err
		}
		image.Labels = withPin(image.Labels, old.Labels)
	}
	return s.Store.Update(ctx, image, fields...)
}

// withPin adds to an image's labels those by which the one before was pinned. Pure.
func withPin(labels, before map[string]string) map[string]string {
	labels = maps.Clone(labels)
	for _, l := range []string{pinnedLabel, directoryLabel} {
		if v := before[l]; v != "" && before[pinnedLabel] != "" {
			if labels == nil {
				labels = map[string]string{}
			}
			labels[l] = v
		}
	}
	return labels
}

// A pulledImages is containerd's images, where its client names what it has pulled from other
// nodes. What users load is their own affair: it is pinned, or not the CRI's.
type pulledImages struct {
	imagesapi.ImagesClient
	content content.Store
}

func (s pulledImages) Create(ctx context.Context, req *imagesapi.CreateImageRequest, opts ...grpc.CallOption) (*imagesapi.CreateImageResponse, error) {
	if err := s.check(ctx, req.Image); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return s.ImagesClient.Create(ctx, req, opts...)
}

func (s pulledImages) Update(ctx context.Context, req *imagesapi.UpdateImageRequest, opts ...grpc.CallOption) (*imagesapi.UpdateImageResponse, error) {
	if fields := req.GetUpdateMask().GetPaths(); len(fields) == 0 || slices.Contains(fields, "target") {
		if err := s.check(ctx, req.Image); err != nil {
			return nil, errgrpc.ToGRPC(err)
		}
	}
	if len(req.GetUpdateMask().GetPaths()) == 0 && req.Image.GetLabels()[pinnedLabel] == "" {
		old, err := s.ImagesClient.Get(ctx, &imagesapi.GetImageRequest{Name: req.Image.GetName()})
		if err != nil {
			return nil, err
		}
		req.Image.Labels = withPin(req.Image.GetLabels(), old.Image.Labels)
	}
	return s.ImagesClient.Update(ctx, req, opts...)
}

func (s pulledImages) check(ctx context.Context, image *imagesapi.Image) error {
	if !collectable(image.GetLabels()) || image.GetTarget() == nil {
		return nil
	}
	return checkPulled(ctx, s.content, oci.DescriptorFromProto(image.Target))
}

// collectable says by an image's labels whether it is the CRI's, and the kubelet may remove it.
func collectable(labels map[string]string) bool {
	return labels[managedLabel] == "managed" && labels[pinnedLabel] != "pinned"
}

// lookedAt gives a plugin by which pulled images get their names that look at them.
func lookedAt(p plugin.Registration, c Config) plugin.Registration {
	if p.Type != plugins.TransferPlugin && (p.Type != plugins.ServicePlugin || p.ID != containerdservices.ImagesService) {
		return p
	}
	return replaced(p, func(ic *plugin.InitContext, theirs any) (any, error) {
		db, err := ic.GetSingle(plugins.MetadataPlugin)
		if err != nil {
			return nil, err
		}
		store := db.(*metadata.DB).ContentStore()
		switch of := theirs.(type) {
		case transfer.Transferrer:
			return pulls{of, c, store}, nil
		case imagesapi.ImagesClient:
			return pulledImages{of, store}, nil
		}
		return nil, fmt.Errorf("containerd's %s is a %T", p.URI(), theirs)
	})
}
