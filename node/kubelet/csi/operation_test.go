package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	volumehelper "k8s.io/component-helpers/storage/volume"

	"knarr/internal/need"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/volume"
)

// operationsOf are the names of operations, each with a word if it failed.
func (n *node) operationsOf() (names []string) {
	for _, o := range n.operations {
		name := o.Name
		if o.Err != nil {
			name += " failed"
		}
		names = append(names, name)
	}
	return names
}

// TestOperations: what is done with a volume of a driver is told, and each call to it.
func TestOperations(t *testing.T) {
	need.Root(t)
	refused := status.Error(codes.InvalidArgument, "no")
	for name, c := range map[string]struct {
		block, migrated bool
		group           bool // the volume is to be given to it, and cannot be
		err             error
		operations      string
		calls           string
	}{
		"file system": {operations: "volume_mount, overall_volume_mount, unmount_device, volume_unmount",
			calls: "NodeStageVolume OK, NodePublishVolume OK, NodeUnpublishVolume OK, NodeUnstageVolume OK"},
		"migrated": {migrated: true, operations: "volume_mount, overall_volume_mount, unmount_device, volume_unmount",
			calls: "NodeStageVolume OK, NodePublishVolume OK, NodeUnpublishVolume OK, NodeUnstageVolume OK"},
		"not owned": {group: true, operations: "volume_apply_access_control failed, volume_mount failed, unmount_device, volume_unmount",
			calls: "NodeStageVolume OK, NodePublishVolume OK, NodeUnpublishVolume OK, NodeUnstageVolume OK"},
		"refused": {err: refused, operations: "volume_mount failed, volume_unmount", calls: "NodeStageVolume InvalidArgument, NodeUnpublishVolume OK"},
		"device": {block: true, operations: "map_volume, unmap_device, unmap_volume",
			calls: "NodeStageVolume OK, NodePublishVolume OK, NodeUnpublishVolume OK, NodeUnstageVolume OK"},
		"device refused": {block: true, err: refused, operations: "map_volume failed, unmap_volume", calls: "NodeStageVolume InvalidArgument, NodeUnpublishVolume OK"},
	} {
		t.Run(name, func(t *testing.T) {
			n, pod := newNode(t), podtest.Use(podWithClaim(2000))
			if c.block {
				n, pod = newBlockNode(t), podWithDevice("uid")
			}
			if !c.group {
				pod.Spec.SecurityContext = nil
			}
			if c.migrated {
				n.pv.Annotations = map[string]string{volumehelper.AnnMigratedTo: "d"}
			}
			n.stageErr = c.err
			_, volumes := n.new()
			if _, _, err := volumes.Mount(t.Context(), pod, nil); (err != nil) != (c.err != nil || c.group) {
				t.Fatal(err)
			}
			if err := volumes.Unmount(t.Context(), "uid"); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(n.operationsOf(), ", "); got != c.operations {
				t.Errorf("operations: %s, want %s", got, c.operations)
			}
			for _, o := range n.operations {
				if o.Plugin != "kubernetes.io/csi:d" || o.Migrated != c.migrated {
					t.Errorf("%+v", o)
				}
			}
			var calls []string
			for _, o := range n.requests {
				calls = append(calls, strings.TrimPrefix(o.Method, "/csi.v1.Node/")+" "+status.Code(o.Err).String())
				if o.Driver != "d" || o.Migrated != c.migrated {
					t.Errorf("%+v", o)
				}
			}
			if got := strings.Join(calls, ", "); got != c.calls {
				t.Errorf("calls: %s, want %s", got, c.calls)
			}
		})
	}
}

// TestOverallOnce: the time from the first try of a mount on is told once.
func TestOverallOnce(t *testing.T) {
	need.Root(t)
	n, pod := newNode(t), podtest.Use(podWithClaim(2000))
	pod.Spec.SecurityContext = nil
	_, volumes := n.new()
	defer func() { _ = volumes.Unmount(t.Context(), "uid") }()
	for _, n.stageErr = range []error{status.Error(codes.Unavailable, "later"), nil, nil} {
		_, _, _ = volumes.Mount(t.Context(), pod, nil)
	}
	got := n.operationsOf()
	if whole := slices.DeleteFunc(slices.Clone(got), func(o string) bool { return o != volume.OpWhole }); len(whole) != 1 {
		t.Errorf("%v", got)
	}
}

// TestUnreadable: a volume of which nothing can be read is counted at the start, and told of
// when it is to be taken away.
func TestUnreadable(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "pods", "uid", "volumes", "kubernetes.io~csi", "pv")
	for _, d := range []string{dir, filepath.Join(root, "pods", "uid", "volumes", "kubernetes.io~secret", "s"), filepath.Join(root, "pods", "uid", "volumeDevices", "kubernetes.io~csi", "link")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var cleaned []error
	m := New(Config{RootDir: root, NodeName: "n", Cleaned: func(err error) { cleaned = append(cleaned, err) }})
	volumes := volume.New(volume.Config{PodsDir: filepath.Join(root, "pods"), CSI: m})
	if found, unreadable := volumes.Found(Noted); found != 3 || unreadable != 1 {
		t.Errorf("%d volumes, %d unreadable", found, unreadable)
	}
	if err := volumes.Unmount(t.Context(), "uid"); err == nil || len(cleaned) != 1 || !errors.Is(err, cleaned[0]) {
		t.Errorf("%v, told %v", err, cleaned)
	}
}

// TestAttachedOperation: the wait for a volume to be attached is told of.
func TestAttachedOperation(t *testing.T) {
	var got []volume.Operation
	m := New(Config{RootDir: t.TempDir(), NodeName: "n", Did: func(o volume.Operation) { got = append(got, o) }})
	r := request{driver: "d", handle: "h"}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.prepare(ctx, &r, "pv", &storagev1.CSIDriver{}, "dir"); err == nil {
		t.Fatal("not attached, and no error")
	}
	if len(got) != 1 || got[0].Name != volume.OpAttached || got[0].Plugin != "kubernetes.io/csi:d" || got[0].Err == nil {
		t.Errorf("%+v", got)
	}
}
