package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"strings"

	"knarr/node/containerruntime"
	"knarr/node/kubelet/cgroup"
)

// noteRuntime notes which other runtime has this node's pods, so that they are found there
// when the node is taken down; "" is none.
func (l layout) noteRuntime(endpoint string) error {
	if b, err := os.ReadFile(l.runtimeEndpoint()); err == nil {
		if before := strings.TrimSpace(string(b)); before != endpoint {
			slog.Warn("this node's pods were in another container runtime; what still runs there is not ended", "runtime", before)
		}
	}
	if endpoint == "" {
		if err := os.Remove(l.runtimeEndpoint()); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	return os.WriteFile(l.runtimeEndpoint(), []byte(endpoint+"\n"), 0o600)
}

// podGroups are how the control groups of this node's pods begin: as directories, as slices,
// and as scopes in slices.
func (l layout) podGroups() []string {
	pods := l.cgroup() + "/kubepods"
	slices := cgroup.SlicePath(pods)
	return []string{pods + "/", slices + "/", strings.TrimSuffix(path.Base(slices), ".slice") + "-"}
}

// removeForeignPods ends the pods of this node that another runtime has: those in its
// cgroup, and those that the kubelet has a directory for. The runtime may have others' too.
func (l layout) removeForeignPods(ctx context.Context, podsDir string) error {
	b, err := os.ReadFile(l.runtimeEndpoint())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	endpoint := strings.TrimSpace(string(b))
	dirs, err := os.ReadDir(podsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	uids := map[string]bool{}
	for _, d := range dirs {
		uids[d.Name()] = true
	}
	if err := containerruntime.RemovePods(ctx, endpoint, l.podGroups(), uids); err != nil {
		return fmt.Errorf("remove this node's pods from the container runtime %s; start it and run this again, or remove %s if it is gone for good: %w", endpoint, l.runtimeEndpoint(), err)
	}
	return os.Remove(l.runtimeEndpoint())
}
