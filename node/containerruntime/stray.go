package containerruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// removeHidden removes bundles that were hidden to be removed when the process was killed
// that did so. Nobody is at it before the plugins are loaded.
func (c Config) removeHidden() error {
	var errs []error
	for _, dir := range []string{c.State, c.Root} {
		paths, _ := filepath.Glob(filepath.Join(dir, "io.containerd.runtime.v2.task", "*", ".*"))
		for _, path := range paths {
			errs = append(errs, mount.UnmountRecursive(filepath.Join(path, "rootfs"), 0), os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// networkNamespaces are the files of those of sandboxes.
func (c Config) networkNamespaces() []string {
	paths, _ := filepath.Glob(filepath.Join(c.State, "io.containerd.grpc.v1.cri", "netns", "*"))
	return paths
}

// removeStray removes what a process that was killed had made for a sandbox and not yet
// noted for which: network namespaces of before this start, and leases of before it, which
// keep snapshots. So it does with images that nobody sees.
func (c Config) removeStray(ctx context.Context, conn *grpc.ClientConn, files []string, start time.Time) error {
	ctx = namespaces.WithNamespace(ctx, imageNamespace)
	client, err := connect(conn)
	if err != nil {
		return err
	}
	if err := removeUnshown(ctx, client); err != nil {
		return err
	}
	held, err := client.LeasesService().List(ctx)
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	if len(held) == 0 && len(files) == 0 {
		return nil
	}
	known := map[string][]map[string]typeurl.Any{}
	sandboxes, err := client.SandboxStore().List(ctx)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	for _, s := range sandboxes {
		known[s.ID] = append(known[s.ID], s.Extensions)
	}
	containers, err := client.ContainerService().List(ctx, `labels."io.cri-containerd.kind"==sandbox`)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	for _, s := range containers {
		known[s.ID] = append(known[s.ID], s.Extensions)
	}
	var errs []error
	for _, l := range held {
		if strayLease(l, known, start) {
			errs = append(errs, client.LeasesService().Delete(ctx, l))
		}
	}
	for _, path := range strayFiles(files, known) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeUnshown removes images that the CRI does not show, and so the kubelet does not
// collect, though they are the CRI's: versions before left them of pulls that failed.
func removeUnshown(ctx context.Context, client *containerd.Client) error {
	shown, err := cri.NewImageServiceClient(client.Conn().(*grpc.ClientConn)).ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	all, err := client.ImageService().List(ctx)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	for _, image := range unshown(all, shown.Images) {
		if checkPulled(ctx, client.ContentStore(), image.Target) == nil || ctx.Err() != nil {
			continue // its event is yet to come
		}
		if err := client.ImageService().Delete(ctx, image.Name); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove image %s: %w", image.Name, err)
		}
	}
	return nil
}

// unshown are the collectable images without those that the CRI shows. Pure.
func unshown(all []images.Image, shown []*cri.Image) (none []images.Image) {
	named := map[string]bool{}
	for _, image := range shown {
		named[image.Id] = true
		for _, name := range slices.Concat(image.RepoTags, image.RepoDigests) {
			named[name] = true
		}
	}
	for _, image := range all {
		if collectable(image.Labels) && !named[image.Name] {
			none = append(none, image)
		}
	}
	return none
}

// sandboxIDSize is the length of a sandbox's id, which is that of its lease too; leases of
// pulls have other ids, and expire.
const sandboxIDSize = 64

// strayLease says whether a lease is that of a sandbox which is not there. Pure.
func strayLease(l leases.Lease, known map[string][]map[string]typeurl.Any, start time.Time) bool {
	_, is := known[l.ID]
	return !is && len(l.ID) == sandboxIDSize && len(l.Labels) == 0 && l.CreatedAt.Before(start)
}

// strayFiles are those that nothing of what is known of sandboxes names. Pure.
func strayFiles(files []string, known map[string][]map[string]typeurl.Any) (none []string) {
	named := map[string]bool{}
	for _, all := range known {
		for _, extensions := range all {
			for _, e := range extensions {
				for _, file := range files {
					if bytes.Contains(e.GetValue(), []byte(file+`"`)) {
						named[file] = true
					}
				}
			}
		}
	}
	for _, file := range files {
		if !named[file] {
			none = append(none, file)
		}
	}
	return none
}
