package csi

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"knarr/node/kubelet/volume"
)

func (f *fakeDriver) NodeGetVolumeStats(_ context.Context, r *csipb.NodeGetVolumeStatsRequest) (*csipb.NodeGetVolumeStatsResponse, error) {
	f.note("statistics " + r.VolumeId + " " + filepath.Base(r.VolumePath))
	return &csipb.NodeGetVolumeStatsResponse{Usage: f.usage}, nil
}

// A driver is asked how full a volume is, if it can say; what it says may be
// nonsense.
func TestUsage(t *testing.T) {
	n := newNode(t)
	m, _ := n.new()
	path := filepath.Join(n.root, "pods/uid/volumes/kubernetes.io~csi/pv/mount")
	device := m.blocks("publish", "pv", "uid")
	for _, dir := range []string{filepath.Dir(path), m.blocks("pv", "data")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := note(dir, record{Handle: "h", Driver: "d"}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := m.Usage(t.Context(), path); got != nil || err != nil || len(n.calls) > 0 {
		t.Errorf("a driver that cannot say: %v %v %v", got, err, n.calls)
	}
	m.drivers["d"].stats = true
	if got, err := m.Usage(t.Context(), path); got != nil || err == nil {
		t.Errorf("a driver that says nothing: %v %v", got, err)
	}
	n.usage = []*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: 10, Used: 4, Available: -6}, nil, {Unit: csipb.VolumeUsage_INODES, Total: 5, Used: 1, Available: 4}, {Total: 9}}
	for _, at := range []string{path, device} {
		got, err := m.Usage(t.Context(), at)
		if want := (volume.Usage{Capacity: 10, Used: 4, Inodes: 5, InodesUsed: 1, InodesFree: 4, Block: at == device}); err != nil || *got != want {
			t.Errorf("%s: %+v %v", at, got, err)
		}
	}
	if _, err := m.Usage(t.Context(), filepath.Join(n.root, "pods/other/volumes/kubernetes.io~csi/pv/mount")); err == nil {
		t.Error("a volume that nobody has")
	}
}
