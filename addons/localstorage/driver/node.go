package driver

import (
	"context"
	"errors"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"knarr/addons/localstorage/disk"
)

func isPending(err error) bool { return errors.Is(err, disk.ErrPending) }

// NodeGetInfo says which node this is, and which nodes reach its volumes: itself.
func (d *Driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: d.NodeID, AccessibleTopology: &csipb.Topology{Segments: d.Topology}}, nil
}

// NodeGetCapabilities says which calls are answered.
func (d *Driver) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	r := &csipb.NodeGetCapabilitiesResponse{}
	for _, t := range []csipb.NodeServiceCapability_RPC_Type{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS, csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		r.Capabilities = append(r.Capabilities, &csipb.NodeServiceCapability{Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}

// matches refuses to use a volume as what it is not.
func (d *Driver) matches(id string, c *csipb.VolumeCapability) error {
	if c == nil {
		return invalid("Volume capability missing in request")
	}
	block, err := check(c)
	if err != nil {
		return err
	}
	v, err := d.Store.Volume(id)
	if err == nil && block != v.Block {
		err = invalid("Volume %s is of the other of block and mount", id)
	}
	return err
}

// NodeStageVolume makes a volume ready on the node.
func (d *Driver) NodeStageVolume(_ context.Context, r *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	if err := missing("Volume ID", r.VolumeId, "Staging target path", r.StagingTargetPath); err != nil {
		return nil, err
	}
	if err := d.matches(r.VolumeId, r.VolumeCapability); err != nil {
		return nil, err
	}
	return &csipb.NodeStageVolumeResponse{}, d.Store.Stage(r.VolumeId, r.StagingTargetPath)
}

// NodeUnstageVolume takes it off the node.
func (d *Driver) NodeUnstageVolume(_ context.Context, r *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	if err := missing("Volume ID", r.VolumeId, "Staging target path", r.StagingTargetPath); err != nil {
		return nil, err
	}
	return &csipb.NodeUnstageVolumeResponse{}, d.Store.Unstage(r.VolumeId, r.StagingTargetPath)
}

// NodePublishVolume shows a volume to one pod.
func (d *Driver) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	if err := missing("Volume ID", r.VolumeId, "Target path", r.TargetPath); err != nil {
		return nil, err
	}
	if err := d.matches(r.VolumeId, r.VolumeCapability); err != nil {
		return nil, err
	}
	if r.StagingTargetPath == "" {
		return nil, status.Error(codes.FailedPrecondition, "Staging target path missing in request")
	}
	flags, err := disk.Flags(r.VolumeCapability.GetMount().GetMountFlags())
	if err != nil {
		return nil, invalid("%v", err)
	}
	if r.Readonly || r.VolumeCapability.AccessMode.GetMode() == csipb.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY {
		flags |= unix.MS_RDONLY
	}
	return &csipb.NodePublishVolumeResponse{}, d.Store.Publish(r.VolumeId, r.StagingTargetPath, r.TargetPath, flags)
}

// NodeUnpublishVolume takes it from the pod.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	if err := missing("Volume ID", r.VolumeId, "Target path", r.TargetPath); err != nil {
		return nil, err
	}
	return &csipb.NodeUnpublishVolumeResponse{}, d.Store.Unpublish(r.VolumeId, r.TargetPath)
}

// NodeGetVolumeStats says how full a volume is.
func (d *Driver) NodeGetVolumeStats(_ context.Context, r *csipb.NodeGetVolumeStatsRequest) (*csipb.NodeGetVolumeStatsResponse, error) {
	if err := missing("Volume ID", r.VolumeId, "Volume path", r.VolumePath); err != nil {
		return nil, err
	}
	u, block, err := d.Store.Usage(r.VolumeId, r.VolumePath)
	if err != nil {
		return nil, err
	}
	bytes := &csipb.VolumeUsage{Unit: csipb.VolumeUsage_BYTES, Total: u.Bytes, Used: u.BytesUsed, Available: u.BytesFree}
	if block {
		return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{bytes}}, nil
	}
	return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{
		bytes, {Unit: csipb.VolumeUsage_INODES, Total: u.Inodes, Used: u.InodesUsed, Available: u.InodesFree},
	}}, nil
}

// NodeExpandVolume makes the file system as large as the volume.
func (d *Driver) NodeExpandVolume(_ context.Context, r *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	if err := missing("Volume ID", r.VolumeId, "Volume path", r.VolumePath); err != nil {
		return nil, err
	}
	v, err := d.Store.Volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if limit := r.GetCapacityRange().GetLimitBytes(); limit > 0 && v.Size > limit {
		return nil, status.Errorf(codes.OutOfRange, "Volume %s has %d bytes, more than the %d allowed", v.ID, v.Size, limit)
	}
	v, err = d.Store.Expand(r.VolumeId, max(v.Size, r.GetCapacityRange().GetRequiredBytes()))
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: v.Size}, err
}
