package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/distribution/reference"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// peerTime is the most that a pull from other nodes may take.
	peerTime = 10 * time.Minute
	// knownTime is the most that the CRI may take to know of a new image.
	knownTime = 10 * time.Second
)

// PullFrom pulls an image from other nodes, which Share theirs at these addresses. Each is
// asked for each part of it in turn, and all but what its tag stands for is known by
// digests, which containerd checks. For the tag any one node's word is taken if they are
// trusted, else that of all which have it, two at least.
func (i *Images) PullFrom(ctx context.Context, name string, peers []string, client *http.Client, trusted bool) error {
	full := fullName(name)
	if full == "" {
		return fmt.Errorf("%q is no name of an image", name)
	}
	if verified(verifierDir) {
		return fmt.Errorf("what is in %s looks at images from registries alone, so that none is had from other nodes", verifierDir)
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, imageNamespace), peerTime)
	defer cancel()
	resolver, err := fromPeers(ctx, full, peers, boundedPeers(client), trusted)
	if err != nil {
		return err
	}
	labels := maps.Clone(cliImageLabels)
	delete(labels, pinnedLabel) // it can be pulled again
	leased, release, err := i.lease(ctx)
	if err != nil {
		return err
	}
	defer release()
	image, err := i.client.Pull(leased, full,
		containerd.WithResolver(resolver),
		containerd.WithPullUnpack, containerd.WithPullSnapshotter(i.snapshotter), containerd.WithPullLabels(labels),
		containerd.WithImageHandlerWrapper(ownAddress), containerd.WithMaxConcurrentDownloads(3))
	if err == nil {
		err = i.nameAsPulled(leased, full, image.Metadata())
	}
	if err != nil {
		return err
	}
	return i.known(ctx, full)
}

// fromPeers asks other nodes in turn for an image and what it consists of, and for its tag, as
// PullFrom has it.
func fromPeers(ctx context.Context, full string, peers []string, client *http.Client, trusted bool) (remotes.Resolver, error) {
	hosts := make([]docker.RegistryHost, len(peers))
	for n, peer := range peers {
		hosts[n] = docker.RegistryHost{
			Client: client, Scheme: "https", Host: peer, Path: "/v2", Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
		}
	}
	resolver := docker.NewResolver(docker.ResolverOptions{
		Hosts: func(string) ([]docker.RegistryHost, error) { return hosts, nil },
	})
	if trusted {
		return resolver, nil
	}
	is, err := agreed(ctx, full, peers, client)
	if err != nil || is == "" {
		return resolver, err
	}
	return agreedTag{resolver, is}, nil
}

// verifierDir is where containerd looks for programs that say of each image from a registry
// whether it may be had.
const verifierDir = "/opt/containerd/image-verifier/bin"

// verified says whether there are any, or may be.
func verified(dir string) bool {
	entries, err := os.ReadDir(dir)
	return len(entries) > 0 || err != nil && !errors.Is(err, os.ErrNotExist)
}

// nameAsPulled names an image as the CRI does one that it pulls: by its id too, by which pods
// mount it, and by its manifest, which is what the status of a container shows.
func (i *Images) nameAsPulled(ctx context.Context, full string, image images.Image) error {
	repository, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return err
	}
	return errors.Join(identify(ctx, i.client, image), nameToo(ctx, i.client, image, repository.Name()+"@"+image.Target.Digest.String()))
}

// known waits until the CRI, which follows containerd's events, knows an image.
func (i *Images) known(ctx context.Context, full string) error {
	ctx, cancel := context.WithTimeout(ctx, knownTime)
	defer cancel()
	service := cri.NewImageServiceClient(i.client.Conn().(*grpc.ClientConn))
	for {
		status, err := service.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: full}})
		if err != nil {
			return fmt.Errorf("image %s from another node: %w", full, err)
		}
		if status.Image != nil {
			return nil
		}
		// Its events come before it has done what they are about, so it is asked again.
		select {
		case <-ctx.Done():
			return fmt.Errorf("image %s from another node: the runtime does not see it after %v", full, knownTime)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
