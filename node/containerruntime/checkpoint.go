package containerruntime

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs/pkg/errgrpc"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// refuseRestore refuses a container whose image is the checkpoint of another. containerd would
// fetch whatever further image that one names, past the policies for images, and begin what
// is in it with the other's settings; the shim begins none. Where there is no CRIU containerd
// refuses it itself. An image goes by several names, of which containerd takes one: none of
// them may be a checkpoint's, and what cannot be looked at is refused. None of them is
// anything else than a manifest or an index, whose size is bounded: imageService has no other.
func (e *executor) refuseRestore(ctx context.Context, r *cri.CreateContainerRequest) error {
	if _, err := exec.LookPath("criu"); err != nil {
		return nil
	}
	name := r.GetConfig().GetImage().GetImage()
	ctx = namespaces.WithNamespace(ctx, imageNamespace)
	known, err := e.imageService.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if err != nil || known.Image == nil {
		return err // without an image containerd has the words
	}
	names := slices.Concat(known.Image.RepoTags, known.Image.RepoDigests)
	if len(names) == 0 {
		names = []string{known.Image.Id}
	}
	for _, one := range names {
		image, err := e.images.Get(ctx, one)
		var manifest []byte
		if err == nil {
			manifest, err = content.ReadBlob(ctx, e.client.ContentStore(), image.Target)
		}
		if err != nil {
			return errgrpc.ToGRPC(fmt.Errorf("look whether image %s is a checkpoint: %w", one, err))
		}
		if isCheckpoint(manifest) {
			return status.Errorf(codes.FailedPrecondition, "image %s is the checkpoint of a container, which is not restored here", one)
		}
	}
	return nil
}

// checkpointAnnotation is that of an image by which containerd knows a checkpoint: the name of
// the container whose state it is.
const checkpointAnnotation = "org.criu.checkpoint.container.name"

// isCheckpoint says whether a manifest, or a list of them, is of a checkpoint.
func isCheckpoint(manifest []byte) bool {
	var m ocispec.Index
	if err := json.Unmarshal(manifest, &m); err != nil {
		return false
	}
	_, ok := m.Annotations[checkpointAnnotation]
	return ok
}
