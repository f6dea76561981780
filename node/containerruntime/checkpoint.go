package containerruntime

import (
	"context"
	"encoding/json"
	"os/exec"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// refuseRestore refuses a container whose image is the checkpoint of another. containerd would
// fetch whatever further image that one names, past the policies for images, and begin what
// is in it with the other's settings; the shim begins none. Where there is no CRIU containerd
// refuses it itself. What cannot be looked at is left to containerd, which looks too.
func (e *executor) refuseRestore(ctx context.Context, r *cri.CreateContainerRequest) error {
	if _, err := exec.LookPath("criu"); err != nil {
		return nil
	}
	name := r.GetConfig().GetImage().GetImage()
	ctx = namespaces.WithNamespace(ctx, imageNamespace)
	image, err := e.images.Get(ctx, name)
	if err != nil {
		return nil
	}
	b, err := content.ReadBlob(ctx, e.client.ContentStore(), image.Target)
	if err != nil {
		return nil
	}
	if isCheckpoint(b) {
		return status.Errorf(codes.FailedPrecondition, "image %s is the checkpoint of a container, which is not restored here", name)
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
