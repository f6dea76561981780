package driver

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"knarr/addons/localstorage/disk"
)

// What the parameters of a class and the provisioner may say.
const (
	ParamLimit     = "limit" // how the size is enforced
	ParamClaim     = "csi.storage.k8s.io/pvc/name"
	ParamNamespace = "csi.storage.k8s.io/pvc/namespace"
	ParamVolume    = "csi.storage.k8s.io/pv/name"
)

// ControllerGetCapabilities says which calls are answered.
func (d *Driver) ControllerGetCapabilities(context.Context, *csipb.ControllerGetCapabilitiesRequest) (*csipb.ControllerGetCapabilitiesResponse, error) {
	r := &csipb.ControllerGetCapabilitiesResponse{}
	for _, t := range []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csipb.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csipb.ControllerServiceCapability_RPC_GET_CAPACITY, csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		r.Capabilities = append(r.Capabilities, &csipb.ControllerServiceCapability{Type: &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}

// parameters are those that somebody set on a class, taken apart. One that has no
// effect is refused. Pure.
func parameters(all map[string]string) (limit disk.Limit, err error) {
	for key, value := range all {
		switch key {
		case ParamClaim, ParamNamespace, ParamVolume:
		case ParamLimit:
			switch limit = disk.Limit(value); limit {
			case disk.ProjectQuota, disk.Image, disk.None:
			default:
				return "", invalid("Parameter %s: %q is none of %s, %s, %s", key, value, disk.ProjectQuota, disk.Image, disk.None)
			}
		default:
			return "", invalid("Parameter %q is not supported", key)
		}
	}
	return limit, nil
}

// size is what a range asks for. Pure.
func size(r *csipb.CapacityRange) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case required < 0 || limit < 0:
		return 0, invalid("Capacity range is negative")
	case limit > 0 && required > limit:
		return 0, invalid("Capacity range asks for %d bytes and allows %d", required, limit)
	case required == 0 && limit > 0:
		return limit, nil
	case required == 0:
		return defaultSize, nil
	}
	return required, nil
}

const defaultSize = 1 << 30

// CreateVolume makes a volume, or finds the one that was made for the same name.
func (d *Driver) CreateVolume(ctx context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	if err := missing("Name", r.Name); err != nil {
		return nil, err
	}
	block, err := check(r.VolumeCapabilities...)
	if err != nil {
		return nil, err
	}
	limit, err := parameters(r.Parameters)
	if err != nil {
		return nil, err
	}
	want := disk.Request{Name: r.Name, Limit: limit, Block: block, ID: disk.ID(r.Name, r.Parameters[ParamNamespace], r.Parameters[ParamClaim])}
	if want.Size, err = size(r.CapacityRange); err != nil {
		return nil, err
	}
	if !disk.ValidID(want.ID) {
		return nil, invalid("Name has nothing that a directory can be called by")
	}
	if !d.reaches(r.AccessibilityRequirements) {
		return nil, status.Errorf(codes.ResourceExhausted, "Volumes of node %s cannot be reached from where the volume is to be", d.NodeID)
	}
	switch s := r.VolumeContentSource.GetType().(type) {
	case nil:
	case *csipb.VolumeContentSource_Volume:
		want.From = s.Volume.GetVolumeId()
	case *csipb.VolumeContentSource_Snapshot:
		want.From, want.Snapshot = s.Snapshot.GetSnapshotId(), true
	default:
		return nil, invalid("Volume content source is not supported")
	}
	if r.VolumeContentSource != nil && want.From == "" {
		return nil, invalid("Volume content source has no ID")
	}
	want.Most = r.CapacityRange.GetLimitBytes()
	v, err := d.Store.Create(ctx, want)
	if err != nil {
		return nil, err
	}
	return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
		VolumeId: v.ID, CapacityBytes: v.Size, ContentSource: r.VolumeContentSource, VolumeContext: map[string]string{ParamLimit: string(v.Limit)},
		AccessibleTopology: []*csipb.Topology{{Segments: d.Topology}},
	}}, nil
}

// reaches says whether this node is where the volume may be.
func (d *Driver) reaches(r *csipb.TopologyRequirement) bool {
	if len(r.GetRequisite()) == 0 {
		return true
	}
	for _, t := range r.GetRequisite() {
		if d.within(t) {
			return true
		}
	}
	return false
}

func (d *Driver) within(t *csipb.Topology) bool {
	for k, v := range t.GetSegments() {
		if d.Topology[k] != v {
			return false
		}
	}
	return true
}

// DeleteVolume removes a volume and its data.
func (d *Driver) DeleteVolume(_ context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	if err := missing("Volume ID", r.VolumeId); err != nil {
		return nil, err
	}
	return &csipb.DeleteVolumeResponse{}, d.Store.Delete(r.VolumeId)
}

// ValidateVolumeCapabilities says whether a volume can be used in some ways.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, r *csipb.ValidateVolumeCapabilitiesRequest) (*csipb.ValidateVolumeCapabilitiesResponse, error) {
	if err := missing("Volume ID", r.VolumeId); err != nil {
		return nil, err
	}
	if len(r.VolumeCapabilities) == 0 {
		return nil, invalid("Volume capabilities missing in request")
	}
	v, err := d.Store.Volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	block, err := check(r.VolumeCapabilities...)
	if err != nil {
		return &csipb.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	if block != v.Block {
		return &csipb.ValidateVolumeCapabilitiesResponse{Message: "The volume is of the other of block and mount"}, nil
	}
	return &csipb.ValidateVolumeCapabilitiesResponse{Confirmed: &csipb.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.VolumeContext, VolumeCapabilities: r.VolumeCapabilities, Parameters: r.Parameters,
	}}, nil
}

// GetCapacity says how much volumes of this node may still have.
func (d *Driver) GetCapacity(_ context.Context, r *csipb.GetCapacityRequest) (*csipb.GetCapacityResponse, error) {
	if r.AccessibleTopology != nil && !d.within(r.AccessibleTopology) {
		return &csipb.GetCapacityResponse{}, nil
	}
	if _, err := parameters(r.Parameters); err != nil {
		return nil, err
	}
	free, err := d.Store.Available()
	return &csipb.GetCapacityResponse{AvailableCapacity: free}, err
}

// ControllerExpandVolume makes a volume larger. The node has something to do if the
// file system cannot grow while it is in use.
func (d *Driver) ControllerExpandVolume(_ context.Context, r *csipb.ControllerExpandVolumeRequest) (*csipb.ControllerExpandVolumeResponse, error) {
	v, pending, err := d.expand(r.VolumeId, r.CapacityRange)
	if err != nil {
		return nil, err
	}
	return &csipb.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: pending}, nil
}

func (d *Driver) expand(id string, r *csipb.CapacityRange) (v disk.Volume, pending bool, err error) {
	if err := missing("Volume ID", id); err != nil {
		return v, false, err
	}
	if r == nil {
		return v, false, invalid("Capacity range missing in request")
	}
	want, err := size(r)
	if err != nil {
		return v, false, err
	}
	v, err = d.Store.Expand(id, want)
	if pending = isPending(err); pending {
		err = nil
	}
	if limit := r.GetLimitBytes(); err == nil && limit > 0 && v.Size > limit {
		err = status.Errorf(codes.OutOfRange, "Volume %s has %d bytes, more than the %d allowed", v.ID, v.Size, limit)
	}
	return v, pending, err
}

// CreateSnapshot copies a volume.
func (d *Driver) CreateSnapshot(ctx context.Context, r *csipb.CreateSnapshotRequest) (*csipb.CreateSnapshotResponse, error) {
	if err := missing("Name", r.Name, "Source volume ID", r.SourceVolumeId); err != nil {
		return nil, err
	}
	id := disk.ID(r.Name, "", "")
	if !disk.ValidID(id) {
		return nil, invalid("Name has nothing that a directory can be called by")
	}
	s, err := d.Store.CreateSnapshot(ctx, id, r.Name, r.SourceVolumeId)
	if err != nil {
		return nil, err
	}
	return &csipb.CreateSnapshotResponse{Snapshot: &csipb.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.Volume, SizeBytes: s.Size, CreationTime: timestamppb.New(s.Created), ReadyToUse: true,
	}}, nil
}

// DeleteSnapshot removes a snapshot.
func (d *Driver) DeleteSnapshot(_ context.Context, r *csipb.DeleteSnapshotRequest) (*csipb.DeleteSnapshotResponse, error) {
	if err := missing("Snapshot ID", r.SnapshotId); err != nil {
		return nil, err
	}
	return &csipb.DeleteSnapshotResponse{}, d.Store.DeleteSnapshot(r.SnapshotId)
}
