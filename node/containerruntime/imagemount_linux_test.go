package containerruntime

import (
	"bytes"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A pod mounts an image that was loaded, by its id as the kubelet names it: at once, and after
// a start if a version before loaded it, which gave it no such name.
func TestLoadedImageIsMounted(t *testing.T) {
	if isolated(t) {
		return
	}
	ctx := t.Context()
	n := newNode(t)
	store, err := OpenImages(n.config.withDefaultsForTest(t).Socket(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	const name = "example.com/data:1"
	for _, content := range []string{"of one build", "of the next, by the same name"} {
		archive, _, err := pauseArchive(name, []byte(content))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.LoadArchive(ctx, bytes.NewReader(archive), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := waitForImage(ctx, n, name); err != nil {
		t.Fatal(err)
	}
	status, err := n.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if err != nil {
		t.Fatal(err)
	}
	id := status.Image.Id
	n.podConfig = func(c *cri.ContainerConfig) {
		c.Mounts = []*cri.Mount{{ContainerPath: "/data", Readonly: true, Image: &cri.ImageSpec{Image: id, UserSpecifiedImage: name}}}
	}
	if _, _, err := n.pod(ctx, "at-once"); err != nil {
		t.Error(err)
	}

	if err := store.client.ImageService().Delete(namespaces.WithNamespace(ctx, imageNamespace), id); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.pod(ctx, "without"); err == nil {
		t.Error("the runtime needs no such name: identify is for nothing")
	}
	n.stop()
	n.start(t)
	if _, _, err := n.pod(ctx, "after-a-start"); err != nil {
		t.Error(err)
	}
}
