package containerruntime

import (
	"bytes"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"google.golang.org/protobuf/proto"
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

// An image in two manifests, as its registry and another program wrote it, has one id: where one
// of its names is removed, it is still known by that.
func TestRemovedNameLeavesTheOther(t *testing.T) {
	if isolated(t) {
		return
	}
	ctx := namespaces.WithNamespace(t.Context(), imageNamespace)
	n := newNode(t)
	store, err := OpenImages(n.config.withDefaultsForTest(t).Socket(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	const one, two = "example.com/one:1", "example.com/two:1"
	archive, _, err := pauseArchive(one, []byte("content"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.LoadArchive(ctx, bytes.NewReader(archive), nil); err != nil {
		t.Fatal(err)
	}
	image, _, err := store.stored(ctx, one)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.Config(ctx, store.client.ContentStore(), platforms.Default())
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := content.ReadBlob(ctx, store.client.ContentStore(), image.Target)
	if err != nil {
		t.Fatal(err)
	}
	manifest = append(manifest, '\n')
	other := images.Image{Name: two, Target: image.Target, Labels: map[string]string{managedLabel: "managed", pinnedLabel: "pinned"}}
	other.Target.Digest, other.Target.Size = digest.FromBytes(manifest), int64(len(manifest))
	leased, release, err := store.lease(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := content.WriteBlob(leased, store.client.ContentStore(), "other", bytes.NewReader(manifest), other.Target); err != nil {
		t.Fatal(err)
	}
	if _, err := store.client.ImageService().Create(leased, other); err != nil {
		t.Fatal(err)
	}
	if err := identify(leased, store.client, other); err != nil {
		t.Fatal(err)
	}
	if err := store.RemoveImage(ctx, two); err != nil {
		t.Fatal(err)
	}
	byID, found, err := store.stored(ctx, config.Digest.String())
	if err != nil || !found || byID.Target.Digest != image.Target.Digest {
		t.Errorf("%v, %v, %v: the image that is left is not known by its id", byID, found, err)
	}
}

// The runtime's list of one pod's containers says of each what its list of all does, also after
// the image has got another name.
func TestListsAgree(t *testing.T) {
	if isolated(t) {
		return
	}
	ctx := t.Context()
	n := newNode(t)
	n.podConfig = func(c *cri.ContainerConfig) { c.Labels = ofPod("a") }
	status, err := n.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: DefaultSandboxImage}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.podOf(ctx, "a", status.Image.Id); err != nil {
		t.Fatal(err)
	}
	all, err := n.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ofOne, err := n.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: ofPod("a")}})
	if err != nil {
		t.Fatal(err)
	}
	if len(ofOne.Containers) != 1 || !proto.Equal(all, ofOne) {
		t.Errorf("of one pod:\n%v\nof all:\n%v", ofOne, all)
	}
}
