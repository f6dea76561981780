package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageNamespace is containerd's namespace for what the CRI shows.
const imageNamespace = "k8s.io"

// releaseTime is the most that the end of a lease may take.
const releaseTime = 10 * time.Second

// cliImageLabels tell the CRI that an image is its own and that the kubelet's
// garbage collection must spare it: it could not be pulled again.
var cliImageLabels = map[string]string{
	managedLabel: "managed",
	pinnedLabel:  "pinned",
}

// Images loads, lists and removes images of a running containerd.
type Images struct {
	client      *containerd.Client
	snapshotter string
}

// Image is one image as the user sees it.
type Image struct {
	// Names are its tags, without the digest names.
	Names []string
	// Digest is that of the manifest or index.
	Digest string
	// Size of the content in bytes, compressed.
	Size int64
	// Created is when it was loaded or pulled.
	Created time.Time
	// Pinned images survive the kubelet's garbage collection.
	Pinned bool
}

// OpenImages connects to the containerd behind socket. An empty snapshotter
// means overlayfs.
func OpenImages(socket, snapshotter string) (*Images, error) {
	client, err := containerd.New(socket, containerd.WithDefaultNamespace(imageNamespace), containerd.WithTimeout(5*time.Second))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	i, err := imagesOn(client.Conn().(*grpc.ClientConn), snapshotter)
	if err == nil && i.snapshotter == "" {
		i.snapshotter, err = runningSnapshotter(i.client)
	}
	if err != nil {
		client.Close()
		return nil, err
	}
	return i, nil
}

// runningSnapshotter asks which snapshotter works there.
func runningSnapshotter(client *containerd.Client) (string, error) {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), imageNamespace), 5*time.Second)
	defer cancel()
	response, err := client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1")
	if err != nil {
		return "", fmt.Errorf("ask for the snapshotter: %w", err)
	}
	for _, p := range response.Plugins {
		if p.ID == "overlayfs" && p.InitErr == nil {
			return "overlayfs", nil
		}
	}
	return "native", nil
}

// Images are those of the containerd behind a connection, which stays open.
func (r *Runtime) Images(conn *grpc.ClientConn) (*Images, error) {
	return imagesOn(conn, r.Snapshotter())
}

func imagesOn(conn *grpc.ClientConn, snapshotter string) (*Images, error) {
	client, err := connect(conn, containerd.WithDefaultNamespace(imageNamespace))
	if err != nil {
		return nil, err
	}
	return &Images{client: client, snapshotter: snapshotter}, nil
}

// Close ends the connection.
func (i *Images) Close() error { return i.client.Close() }

// LoadFile loads the archive at path; "-" is standard input.
func (i *Images) LoadFile(ctx context.Context, path string, progress func(string)) ([]string, error) {
	if path == "-" {
		return i.LoadArchive(ctx, os.Stdin, progress)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := i.LoadArchive(ctx, f, progress)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", path, err)
	}
	return names, nil
}

// LoadArchive loads every image of an OCI or docker-save archive, compressed
// or not, that this platform can run, and gives their names. progress, if not
// nil, is told what is being done.
func (i *Images) LoadArchive(ctx context.Context, r io.Reader, progress func(string)) ([]string, error) {
	return i.load(ctx, r, nil, progress)
}

func (i *Images) load(ctx context.Context, r io.Reader, extra map[string]string, progress func(string)) (names []string, err error) {
	if progress == nil {
		progress = func(string) {}
	}
	ctx = namespaces.WithNamespace(ctx, imageNamespace)
	// One lease over everything: nothing is collected before it is unpacked.
	ctx, release, err := i.lease(ctx)
	if err != nil {
		return nil, err
	}
	defer release()

	plain, err := plainArchive(r)
	if err != nil {
		return nil, fmt.Errorf("read archive: %w", err)
	}
	defer plain.Close()
	labels := maps.Clone(cliImageLabels)
	maps.Copy(labels, extra)
	progress("reading archive")
	platform := platforms.Default()
	loaded, err := i.client.Import(ctx, plain,
		containerd.WithImportPlatform(platform),
		containerd.WithImageRefTranslator(fullName),
		containerd.WithImageLabels(labels),
		containerd.WithSkipMissing())
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	for _, image := range loaded { // these are there and pinned, whatever comes now
		names = append(names, image.Name)
	}
	// What follows the end of the archive is still to be read, or whoever
	// writes it into a pipe gets an error.
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return names, fmt.Errorf("read archive: %w", err)
	}
	for _, image := range loaded {
		progress("unpacking " + image.Name)
		if err := containerd.NewImageWithPlatform(i.client, image, platform).Unpack(ctx, i.snapshotter); err != nil {
			return names, fmt.Errorf("unpack %s: %w", image.Name, err)
		}
		if err := identify(ctx, i.client, image); err != nil {
			return names, err
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the archive names no image; save it with a name, such as example.com/app:1")
	}
	return names, nil
}

// identify names an image by its id too, as the CRI does with what it pulls: it looks for
// one that a pod mounts by that name.
func identify(ctx context.Context, client *containerd.Client, image images.Image) error {
	config, err := image.Config(ctx, client.ContentStore(), platforms.Default())
	if err != nil {
		return fmt.Errorf("id of image %s: %w", image.Name, err)
	}
	return nameToo(ctx, client, image, config.Digest.String())
}

// nameToo gives an image that is the CRI's a further name.
func nameToo(ctx context.Context, client *containerd.Client, image images.Image, name string) error {
	named := images.Image{Name: name, Target: image.Target, Labels: map[string]string{managedLabel: "managed"}}
	_, err := client.ImageService().Create(ctx, named)
	if errdefs.IsAlreadyExists(err) {
		_, err = client.ImageService().Update(ctx, named, "target")
	}
	if err != nil {
		return fmt.Errorf("name image %s %s: %w", image.Name, name, err)
	}
	return nil
}

// identifyLoaded does so with those that versions before loaded or had from other nodes.
func identifyLoaded(ctx context.Context, conn *grpc.ClientConn) error {
	client, err := connect(conn)
	if err != nil {
		return err
	}
	return identifyAll(namespaces.WithNamespace(ctx, imageNamespace), client)
}

// identifyAll identifies the images that have no name that is their id.
func identifyAll(ctx context.Context, client *containerd.Client) error {
	all, err := client.ImageService().List(ctx)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	var errs []error
	for _, image := range unidentified(all) {
		errs = append(errs, identify(ctx, client, image))
	}
	return errors.Join(errs...)
}

// unidentified are one of each image that is the CRI's and has no name that is its id. Pure.
func unidentified(all []images.Image) (without []images.Image) {
	known := map[digest.Digest]bool{}
	for _, image := range all {
		if strings.HasPrefix(image.Name, "sha256:") {
			known[image.Target.Digest] = true
		}
	}
	for _, image := range all {
		if image.Labels[managedLabel] == "managed" && !known[image.Target.Digest] {
			known[image.Target.Digest] = true
			without = append(without, image)
		}
	}
	return without
}

// lease keeps what is had by its context until release is called. That works when ctx has
// ended, too: containerd's client leaves the lease of a pull that is given up for a day.
func (i *Images) lease(ctx context.Context) (_ context.Context, release func(), err error) {
	ctx, done, err := i.client.WithLease(ctx)
	if err != nil {
		return ctx, nil, err
	}
	return ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
		defer cancel()
		_ = done(ctx) // it expires
	}, nil
}

// The labels of images that are the CRI's, that users have pinned and that a directory has.
const (
	managedLabel   = "io.cri-containerd.image"
	pinnedLabel    = "io.cri-containerd.pinned"
	directoryLabel = "knarr.io/images-directory"
)

// LoadPinned loads the archive at path and gives the names of its images, also of those that
// it has pinned when there is an error. Unpin lets them be collected.
func (i *Images) LoadPinned(ctx context.Context, path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return i.load(ctx, f, map[string]string{directoryLabel: "true"}, nil)
}

// Pull pulls an image as a pod's container is, by the mirrors and credentials of the
// node's configuration, and gives its full name.
func (i *Images) Pull(ctx context.Context, name string) (string, error) {
	full, err := nameToPull(name)
	if err != nil {
		return "", err
	}
	service := cri.NewImageServiceClient(i.client.Conn().(*grpc.ClientConn))
	if _, err := service.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: full}}); err != nil {
		return "", errors.New(status.Convert(err).Message())
	}
	return full, nil
}

// nameToPull is the full name of an image, its tag being latest if it says none.
func nameToPull(name string) (full string, err error) {
	if full = fullName(name); full == "" {
		full = fullName(name + ":latest")
	}
	if full == "" {
		return "", fmt.Errorf("%q is no name of an image", name)
	}
	return full, nil
}

// PullPinned pins an image, and pulls it before if the CRI has none of that name: a node whose
// registry is away keeps what it has. Unpin lets it be collected.
func (i *Images) PullPinned(ctx context.Context, name string) (string, error) {
	full, err := nameToPull(name)
	if err != nil {
		return "", err
	}
	service := cri.NewImageServiceClient(i.client.Conn().(*grpc.ClientConn))
	status, err := service.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: full}})
	if err != nil || status.Image == nil {
		if _, err := i.Pull(ctx, full); err != nil {
			return "", err
		}
	}
	image, ok, err := i.stored(ctx, full)
	if err != nil || !ok || image.Labels[pinnedLabel] == "pinned" {
		return full, err // by a user, if it is pinned
	}
	return full, i.label(ctx, full, map[string]string{pinnedLabel: "pinned", directoryLabel: "true"})
}

// Unpin lets an image be collected that LoadPinned or PullPinned has pinned.
func (i *Images) Unpin(ctx context.Context, name string) error {
	image, ok, err := i.stored(ctx, name)
	if err != nil || !ok || image.Labels[directoryLabel] == "" {
		return err
	}
	return i.label(ctx, name, map[string]string{pinnedLabel: "", directoryLabel: ""})
}

// Has says whether there is an image with that full name.
func (i *Images) Has(ctx context.Context, name string) (bool, error) {
	_, ok, err := i.stored(ctx, name)
	return ok, err
}

// label sets labels of an image; those without a value go.
func (i *Images) label(ctx context.Context, name string, labels map[string]string) error {
	image := images.Image{Name: name, Labels: labels}
	var fields []string
	for l := range labels {
		fields = append(fields, "labels."+l)
	}
	if _, err := i.client.ImageService().Update(namespaces.WithNamespace(ctx, imageNamespace), image, fields...); err != nil {
		return fmt.Errorf("label image %s: %w", name, err)
	}
	return nil
}

// fullName completes an image name as docker does. A bare tag, which is all an
// OCI layout has to give, names nothing.
func fullName(name string) string {
	if !strings.ContainsAny(name, "/:@") {
		return ""
	}
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return ""
	}
	return ref.String()
}

// ListImages gives every image, by name.
func (i *Images) ListImages(ctx context.Context) ([]Image, error) {
	ctx = namespaces.WithNamespace(ctx, imageNamespace)
	all, err := i.client.ImageService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	byDigest := map[digest.Digest]*Image{}
	for _, stored := range all {
		image := byDigest[stored.Target.Digest]
		if image == nil {
			image = &Image{Digest: stored.Target.Digest.String(), Created: stored.CreatedAt}
			// An image whose content is incomplete is shown without a size.
			image.Size, _ = stored.Size(ctx, i.client.ContentStore(), platforms.Default())
			byDigest[stored.Target.Digest] = image
		}
		image.Pinned = image.Pinned || stored.Labels[pinnedLabel] == "pinned"
		if !strings.Contains(stored.Name, "sha256:") {
			image.Names = append(image.Names, stored.Name)
		}
	}
	list := make([]Image, 0, len(byDigest))
	for _, image := range byDigest {
		slices.Sort(image.Names)
		list = append(list, *image)
	}
	slices.SortFunc(list, func(a, b Image) int {
		return strings.Compare(strings.Join(a.Names, " ")+a.Digest, strings.Join(b.Names, " ")+b.Digest)
	})
	return list, nil
}

// RemoveImage removes the image with that name, short or full, or digest, and
// every other name it has if it was given by digest.
func (i *Images) RemoveImage(ctx context.Context, name string) error {
	ctx = namespaces.WithNamespace(ctx, imageNamespace)
	service := i.client.ImageService()
	all, err := service.List(ctx)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	doomed := matching(all, name)
	if len(doomed) == 0 {
		return fmt.Errorf("image %s: %w", name, errdefs.ErrNotFound)
	}
	for _, n := range doomed {
		if err := service.Delete(ctx, n, images.SynchronousDelete()); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove image %s: %w", n, err)
		}
	}
	// The id may be that of an image that stays, in another manifest. One that has none, for what
	// it is, says so when the runtime starts: this one is removed all the same.
	_ = identifyAll(ctx, i.client)
	return nil
}

// matching gives the names to delete for what the user wrote. By digest or id
// all names of the image go; by name that name, and with the last one of them
// also the digests and ids the CRI keeps beside it.
func matching(all []images.Image, name string) []string {
	byDigest := strings.HasPrefix(name, "sha256:")
	full := fullName(name)
	if full == "" {
		full = fullName(name + ":latest")
	}
	var target digest.Digest
	for _, image := range all {
		switch {
		case image.Name == name, !byDigest && image.Name == full, byDigest && image.Target.Digest.String() == name:
			target = image.Target.Digest
		}
	}
	var named, others, digests []string
	for _, image := range all {
		switch {
		case image.Target.Digest != target:
		case image.Name == name || image.Name == full:
			named = append(named, image.Name)
		case strings.Contains(image.Name, "sha256:"):
			digests = append(digests, image.Name)
		default:
			others = append(others, image.Name)
		}
	}
	switch {
	case byDigest:
		return slices.Concat(named, others, digests)
	case len(others) == 0:
		return append(named, digests...)
	}
	return named
}

// stored gives the image called name, if there is one.
func (i *Images) stored(ctx context.Context, name string) (image images.Image, found bool, err error) {
	image, err = i.client.ImageService().Get(namespaces.WithNamespace(ctx, imageNamespace), name)
	if errdefs.IsNotFound(err) {
		return image, false, nil
	}
	if err != nil {
		return image, false, fmt.Errorf("image %s: %w", name, err)
	}
	return image, true, nil
}
