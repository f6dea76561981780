package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// withSnapshots is what the description of knarr's own driver says besides, where a
// sidecar for snapshots stands beside it.
const withSnapshots = "SnapshotClass:\n  FromName: true\n"

// besides installs what specs that are not marked Conformance find in a cluster, and gives
// the path of what the suite is to know of knarr's own storage driver.
func (c *cluster) besides(ctx context.Context, description string, snapshots bool) (string, error) {
	if err := c.addresses(ctx); err != nil || !snapshots {
		return description, err
	}
	if err := c.addons(ctx); err != nil { // the suite waits for all pods of kube-system
		return "", err
	}
	return c.snapshots(ctx, description)
}

// snapshots puts upstream's sidecar beside knarr's own storage driver, and gives the
// path of a description of the driver that has snapshots. Several nodes have a driver
// each, and with a sidecar for each the suite's own contents of snapshots would be
// nobody's: then the description stays as it is, and the suite skips these specs.
func (c *cluster) snapshots(ctx context.Context, description string) (string, error) {
	if c.nodes > 1 {
		return description, nil
	}
	known, err := os.ReadFile(description)
	if err != nil {
		return "", err
	}
	manifest, err := os.ReadFile(filepath.Join(filepath.Dir(description), "local-path-snapshots.yaml"))
	if err != nil {
		return "", err
	}
	socket := filepath.Join(c.dataDir, "kubelet/plugins/local-path.knarr.io")
	manifest = bytes.ReplaceAll(manifest, []byte(" DIRECTORY,"), fmt.Appendf(nil, " %q,", socket))
	files := map[string][]byte{"snapshots.yaml": manifest, "local-path.yaml": append(known, withSnapshots...)}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(c.out, name), b, 0o644); err != nil {
			return "", err
		}
	}
	return filepath.Join(c.out, "local-path.yaml"), c.say(ctx, "snapshots.log", "kubectl", "--kubeconfig", c.kubeconfig(), "apply", "-f", filepath.Join(c.out, "snapshots.yaml"))
}
