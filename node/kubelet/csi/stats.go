package csi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"knarr/node/kubelet/volume"
)

// Usage asks the driver of a volume how full it is; nil if the driver cannot say.
// path is where the volume is published.
func (m *Manager) Usage(ctx context.Context, path string) (*volume.Usage, error) {
	dir, block := filepath.Dir(path), false
	if rel, err := filepath.Rel(m.blocks("publish"), path); err == nil && filepath.IsLocal(rel) {
		dir, block = m.blocks(filepath.Base(dir), "data"), true
	}
	r, err := noted(dir)
	if err != nil {
		return nil, fmt.Errorf("read the record of the volume at %s: %w", path, err)
	}
	d, err := m.driver(r.Driver)
	if err != nil || !d.stats {
		return nil, err
	}
	res, err := d.node.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{VolumeId: r.Handle, VolumePath: path})
	if err != nil {
		return nil, fmt.Errorf("statistics of volume %s: %w", r.Handle, err)
	}
	if len(res.Usage) == 0 {
		return nil, errors.New("failed to get usage from response. usage is nil")
	}
	return usageOf(res.Usage, block), nil
}

// usageOf reads a driver's answer, which may be anything. Pure.
func usageOf(answer []*csipb.VolumeUsage, block bool) *volume.Usage {
	count := func(n int64) uint64 { return uint64(max(n, 0)) }
	u := &volume.Usage{Block: block}
	for _, o := range answer {
		switch o.GetUnit() {
		case csipb.VolumeUsage_BYTES:
			u.Capacity, u.Used, u.Available = count(o.GetTotal()), count(o.GetUsed()), count(o.GetAvailable())
		case csipb.VolumeUsage_INODES:
			u.Inodes, u.InodesUsed, u.InodesFree = count(o.GetTotal()), count(o.GetUsed()), count(o.GetAvailable())
		}
	}
	return u
}
