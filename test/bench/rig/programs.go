package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// Prepare builds what of upstream is not in the cache yet: its own programs by
// the module beside this one, those of its node by this one. It runs in
// test/bench of the repository.
func Prepare(ctx context.Context, repository, cache string) (Programs, error) {
	p := Programs{Knarr: filepath.Join(repository, "bin", "knarr"), Upstream: filepath.Join(cache, "v1.36.3"), Build: filepath.Join(repository, "build"),
		Kinds: filepath.Join(repository, "test", "oracle", "testdata", "kinds.yaml")}
	if !exists(p.Knarr) {
		return p, fmt.Errorf("%s is not there: make build", p.Knarr)
	}
	build := func(dir string, args ...string) error {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go %v: %w", args, err)
		}
		return nil
	}
	if err := build(filepath.Join(repository, "test", "conformance"), "run", "./upstream", "-cache", cache,
		"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kube-proxy", "kubelet"); err != nil {
		return p, err
	}
	for name, pkg := range ofNode {
		path := filepath.Join(p.Upstream, name)
		if exists(path) {
			continue
		}
		if err := build(filepath.Join(repository, "test", "bench"), "build", "-trimpath", "-ldflags", "-s -w",
			"-tags", "no_btrfs no_zfs no_devmapper", "-o", path+".new", pkg); err != nil {
			return p, err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return p, err
		}
	}
	return p, nil
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
