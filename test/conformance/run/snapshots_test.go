package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSnapshots: on one node the sidecar gets that node's socket and the suite is told
// of snapshots; on several it is told of none.
func TestSnapshots(t *testing.T) {
	c := &cluster{knarr: "true", nodes: 2, dataDir: "/data dir", out: t.TempDir()}
	if got, err := c.snapshots(t.Context(), "../local-path.yaml"); err != nil || got != "../local-path.yaml" {
		t.Errorf("two nodes: %s, %v", got, err)
	}
	c.nodes = 1
	got, err := c.snapshots(t.Context(), "../local-path.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		got:                                    "\nSnapshotClass:\n  FromName: true\n",
		filepath.Join(c.out, "snapshots.yaml"): `hostPath: {path: "/data dir/kubelet/plugins/local-path.knarr.io", type: Directory}`,
	} {
		b, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v, without %q", path, err, want)
		}
	}
}
