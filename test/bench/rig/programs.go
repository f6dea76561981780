package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// ofNode are the programs of upstream's node, from this module.
var ofNode = map[string]string{
	"containerd": "github.com/containerd/containerd/v2/cmd/containerd",
	"ctr":        "github.com/containerd/containerd/v2/cmd/ctr",
	"host-local": "github.com/containernetworking/plugins/plugins/ipam/host-local",
	"bridge":     "github.com/containernetworking/plugins/plugins/main/bridge",
	"loopback":   "github.com/containernetworking/plugins/plugins/main/loopback",
	"portmap":    "github.com/containernetworking/plugins/plugins/meta/portmap",
}

// Find says where the programs are, or will be once Build has returned: upstream's
// in cache, by default the user's.
func Find(repository, cache string) (Programs, error) {
	repository, err := filepath.Abs(repository)
	if err != nil {
		return Programs{}, err
	}
	if cache == "" {
		if cache, err = os.UserCacheDir(); err != nil {
			return Programs{}, err
		}
		cache = filepath.Join(cache, "knarr")
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return Programs{}, err
	}
	p := Programs{Repository: repository, Knarr: filepath.Join(repository, "bin", "knarr"), Made: filepath.Join(repository, "build"),
		Kinds: filepath.Join(repository, "test", "oracle", "testdata", "kinds.yaml"), cache: cache, Upstream: filepath.Join(cache, "v1.36.3")}
	if !exists(p.Knarr) {
		return p, fmt.Errorf("%s is not there: make build", p.Knarr)
	}
	return p, nil
}

// Build builds what of upstream is not in the cache yet, its own programs by the
// module beside this one and those of its node, if one is wanted, by this one, and may
// have to fetch their modules; more are others of its own.
func (p Programs) Build(ctx context.Context, node bool, more ...string) error {
	if p.Against != "" {
		return nil
	}
	build := func(dir string, args ...string) error {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(p.Repository, "test", dir), os.Stderr, os.Stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go %v: %w", args, err)
		}
		return nil
	}
	own := []string{"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kube-proxy", "kubelet"}
	if err := build("conformance", slices.Concat([]string{"run", "./upstream", "-cache", p.cache}, own, more)...); err != nil {
		return err
	}
	if !node {
		return nil
	}
	for name, pkg := range ofNode {
		path := filepath.Join(p.Upstream, name)
		if exists(path) {
			continue
		}
		if err := build("bench", "build", "-trimpath", "-ldflags", "-s -w",
			"-tags", "no_btrfs no_zfs no_devmapper", "-o", path+".new", pkg); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// writeFile makes the folders too.
func writeFile(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}
