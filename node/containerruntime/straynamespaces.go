package containerruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// networkNamespaces are the files of those of sandboxes.
func (c Config) networkNamespaces() []string {
	paths, _ := filepath.Glob(filepath.Join(c.State, "io.containerd.grpc.v1.cri", "netns", "*"))
	return paths
}

// removeStray removes those network namespaces of before this start that no sandbox
// knows of: a process that was killed had made them and not yet noted for whom.
func (c Config) removeStray(ctx context.Context, conn *grpc.ClientConn, before []string) error {
	if len(before) == 0 {
		return nil
	}
	ctx = namespaces.WithNamespace(ctx, imageNamespace)
	client, err := containerd.NewWithConn(conn)
	if err != nil {
		return err
	}
	var known []map[string]typeurl.Any
	sandboxes, err := client.SandboxStore().List(ctx)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	for _, s := range sandboxes {
		known = append(known, s.Extensions)
	}
	containers, err := client.ContainerService().List(ctx, `labels."io.cri-containerd.kind"==sandbox`)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	for _, s := range containers {
		known = append(known, s.Extensions)
	}
	var errs []error
	for _, path := range stray(before, known) {
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

// stray are the files that nothing of what is known of sandboxes names. Pure.
func stray(files []string, known []map[string]typeurl.Any) (none []string) {
	named := map[string]bool{}
	for _, extensions := range known {
		for _, e := range extensions {
			for _, file := range files {
				if bytes.Contains(e.GetValue(), []byte(file+`"`)) {
					named[file] = true
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
