package driver

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"knarr/addons/localstorage/disk"
	"knarr/internal/need"
	"knarr/internal/run"
)

type clients struct {
	csipb.IdentityClient
	csipb.ControllerClient
	csipb.NodeClient
	registration.RegistrationClient
	dir string
}

// serve is a driver behind its socket.
func serve(t *testing.T) *clients {
	t.Helper()
	dir := t.TempDir()
	store, err := disk.Open(t.Context(), filepath.Join(dir, "storage"))
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{Store: store, NodeID: "one", Topology: map[string]string{"kubernetes.io/hostname": "one"}, Version: "v", Endpoint: filepath.Join(dir, "p", "csi.sock")}
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan struct{})
	var wg run.Group
	wg.Go("driver", func() {
		if err := d.Serve(ctx, filepath.Join(dir, "r", "reg.sock"), func() { close(ready) }); err != nil {
			t.Error(err)
		}
	})
	<-ready
	dial := func(path string) *grpc.ClientConn {
		conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	t.Cleanup(func() { cancel(); wg.Wait(); store.Close() })
	conn := dial(d.Endpoint)
	return &clients{csipb.NewIdentityClient(conn), csipb.NewControllerClient(conn), csipb.NewNodeClient(conn), registration.NewRegistrationClient(dial(filepath.Join(dir, "r", "reg.sock"))), dir}
}

func capability(change ...func(*csipb.VolumeCapability)) *csipb.VolumeCapability {
	c := &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func inMode(m csipb.VolumeCapability_AccessMode_Mode) func(*csipb.VolumeCapability) {
	return func(c *csipb.VolumeCapability) { c.AccessMode.Mode = m }
}

func asBlock(c *csipb.VolumeCapability) {
	c.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
}

func request(name string, size int64, change ...func(*csipb.CreateVolumeRequest)) *csipb.CreateVolumeRequest {
	r := &csipb.CreateVolumeRequest{
		Name: name, CapacityRange: &csipb.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csipb.VolumeCapability{capability()},
		Parameters: map[string]string{ParamLimit: "none"},
	}
	for _, f := range change {
		f(r)
	}
	return r
}

func fromVolume(id string) *csipb.VolumeContentSource {
	return &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Volume{Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func fromSnapshot(id string) *csipb.VolumeContentSource {
	return &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Snapshot{Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

// TestCreate: which requests get a volume, and the contract's codes for the rest.
func TestCreate(t *testing.T) {
	c := serve(t)
	if _, err := c.CreateVolume(t.Context(), request("there", 8192)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateSnapshot(t.Context(), &csipb.CreateSnapshotRequest{Name: "snap", SourceVolumeId: "there"}); err != nil {
		t.Fatal(err)
	}
	type req = *csipb.CreateVolumeRequest
	for name, tt := range map[string]struct {
		r    req
		want codes.Code
	}{
		"plain":               {request("a", 1), codes.OK},
		"the same again":      {request("there", 8192), codes.OK},
		"smaller than before": {request("there", 1), codes.OK},
		"larger than before":  {request("there", 1<<20), codes.AlreadyExists},
		"no longer allowed":   {request("there", 1, func(r req) { r.CapacityRange.LimitBytes = 4096 }), codes.AlreadyExists},
		"no name":             {request("", 1), codes.InvalidArgument},
		"no capabilities":     {request("b", 1, func(r req) { r.VolumeCapabilities = nil }), codes.InvalidArgument},
		"no access type":      {request("b", 1, func(r req) { r.VolumeCapabilities[0].AccessType = nil }), codes.InvalidArgument},
		"many nodes": {request("b", 1, func(r req) {
			inMode(csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)(r.VolumeCapabilities[0])
		}), codes.InvalidArgument},
		"block and mount": {request("b", 1, func(r req) {
			r.VolumeCapabilities = append(r.VolumeCapabilities, capability(asBlock))
		}), codes.InvalidArgument},
		"another file system": {request("b", 1, func(r req) { r.VolumeCapabilities[0].GetMount().FsType = "ntfs" }), codes.InvalidArgument},
		"unknown parameter":   {request("b", 1, func(r req) { r.Parameters["nodePath"] = "/" }), codes.InvalidArgument},
		"unknown limit":       {request("b", 1, func(r req) { r.Parameters[ParamLimit] = "luck" }), codes.InvalidArgument},
		"negative":            {request("b", -1), codes.InvalidArgument},
		"limit below size":    {request("b", 8192, func(r req) { r.CapacityRange.LimitBytes = 4096 }), codes.InvalidArgument},
		"limit below a unit":  {request("b", 1, func(r req) { r.CapacityRange.LimitBytes = 10 }), codes.OutOfRange},
		"too large":           {request("b", 1<<60), codes.ResourceExhausted},
		"the largest number":  {request("b", math.MaxInt64), codes.OutOfRange},
		"paths in the name":   {request("../../../x", 1), codes.OK},
		"nothing in the name": {request("../..", 1, func(r req) { r.Name = "..." }), codes.InvalidArgument},
		"another node": {request("b", 1, func(r req) {
			r.AccessibilityRequirements = &csipb.TopologyRequirement{Requisite: []*csipb.Topology{{Segments: map[string]string{"kubernetes.io/hostname": "two"}}}}
		}), codes.ResourceExhausted},
		"a copy":                   {request("c1", 8192, func(r req) { r.VolumeContentSource = fromVolume("there") }), codes.OK},
		"a copy of a snapshot":     {request("c2", 8192, func(r req) { r.VolumeContentSource = fromSnapshot("snap") }), codes.OK},
		"a copy of nothing":        {request("c3", 8192, func(r req) { r.VolumeContentSource = fromVolume("nothing") }), codes.NotFound},
		"a copy of no snapshot":    {request("c3", 8192, func(r req) { r.VolumeContentSource = fromSnapshot("there") }), codes.NotFound},
		"a copy by a path":         {request("c3", 8192, func(r req) { r.VolumeContentSource = fromVolume("../../etc") }), codes.NotFound},
		"a copy of an empty ID":    {request("c3", 8192, func(r req) { r.VolumeContentSource = fromVolume("") }), codes.InvalidArgument},
		"a copy into another mode": {request("c3", 8192, func(r req) { asBlock(r.VolumeCapabilities[0]); r.VolumeContentSource = fromVolume("there") }), codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.CreateVolume(t.Context(), tt.r)
			if status.Code(err) != tt.want {
				t.Fatalf("%v, want %s", err, tt.want)
			}
			if err == nil && (got.Volume.CapacityBytes < tt.r.CapacityRange.RequiredBytes || got.Volume.AccessibleTopology[0].Segments["kubernetes.io/hostname"] != "one" || strings.Contains(got.Volume.VolumeId, "/")) {
				t.Errorf("%v", got)
			}
		})
	}
	if all, _ := os.ReadDir(c.dir); len(all) != 3 {
		t.Errorf("beside the storage: %v", all)
	}
}

// TestCalls: what must be there is asked for, what is gone is gone.
func TestCalls(t *testing.T) {
	c := serve(t)
	v, err := c.CreateVolume(t.Context(), request("v", 8192))
	if err != nil {
		t.Fatal(err)
	}
	id, path, ctx := v.Volume.VolumeId, filepath.Join(c.dir, "target"), t.Context()
	bytes := &csipb.CapacityRange{RequiredBytes: 1 << 20}
	for name, tt := range map[string]struct {
		call func() error
		want codes.Code
	}{
		"delete without ID": {func() error { _, err := c.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{}); return err }, codes.InvalidArgument},
		"delete nothing":    {func() error { _, err := c.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: "no"}); return err }, codes.OK},
		"delete by a path":  {func() error { _, err := c.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: "../r"}); return err }, codes.OK},
		"expand":            {func() error { return c.expand(ctx, id, bytes) }, codes.OK},
		"expand nothing":    {func() error { return c.expand(ctx, "no", bytes) }, codes.NotFound},
		"expand without ID": {func() error { return c.expand(ctx, "", bytes) }, codes.InvalidArgument},
		"expand to nothing": {func() error { return c.expand(ctx, id, nil) }, codes.InvalidArgument},
		"expand too far":    {func() error { return c.expand(ctx, id, &csipb.CapacityRange{RequiredBytes: 1 << 60}) }, codes.ResourceExhausted},
		"snapshot nothing":  {func() error { return c.snapshot(ctx, "s", "no") }, codes.NotFound},
		"snapshot nameless": {func() error { return c.snapshot(ctx, "", id) }, codes.InvalidArgument},
		"snapshot of no ID": {func() error { return c.snapshot(ctx, "s", "") }, codes.InvalidArgument},
		"delete no snapshot": {func() error {
			_, err := c.DeleteSnapshot(ctx, &csipb.DeleteSnapshotRequest{SnapshotId: "no"})
			return err
		}, codes.OK},
		"delete snapshot without ID": {func() error {
			_, err := c.DeleteSnapshot(ctx, &csipb.DeleteSnapshotRequest{})
			return err
		}, codes.InvalidArgument},
		"stage nothing":            {func() error { return c.stage(ctx, "no", path, capability()) }, codes.NotFound},
		"stage nowhere":            {func() error { return c.stage(ctx, id, "", capability()) }, codes.InvalidArgument},
		"stage without ID":         {func() error { return c.stage(ctx, "", path, capability()) }, codes.InvalidArgument},
		"stage without capability": {func() error { return c.stage(ctx, id, path, nil) }, codes.InvalidArgument},
		"stage as a device":        {func() error { return c.stage(ctx, id, path, capability(asBlock)) }, codes.InvalidArgument},
		"publish unstaged": {func() error {
			_, err := c.NodePublishVolume(ctx, &csipb.NodePublishVolumeRequest{VolumeId: id, TargetPath: path, VolumeCapability: capability()})
			return err
		}, codes.FailedPrecondition},
		"unpublish nothing": {func() error {
			_, err := c.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path})
			return err
		}, codes.OK},
		"unpublish nowhere": {func() error {
			_, err := c.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: id})
			return err
		}, codes.InvalidArgument},
		"statistics of nothing": {func() error {
			_, err := c.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{VolumeId: "no", VolumePath: path})
			return err
		}, codes.NotFound},
		"statistics where it is not": {func() error {
			_, err := c.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
			return err
		}, codes.NotFound},
		"validate nothing": {func() error {
			_, err := c.ValidateVolumeCapabilities(ctx, &csipb.ValidateVolumeCapabilitiesRequest{VolumeId: "no", VolumeCapabilities: []*csipb.VolumeCapability{capability()}})
			return err
		}, codes.NotFound},
		"list": {func() error { _, err := c.ListVolumes(ctx, &csipb.ListVolumesRequest{}); return err }, codes.Unimplemented},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tt.call(); status.Code(err) != tt.want {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

func (c *clients) expand(ctx context.Context, id string, r *csipb.CapacityRange) error {
	_, err := c.ControllerExpandVolume(ctx, &csipb.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: r})
	return err
}

func (c *clients) snapshot(ctx context.Context, name, id string) error {
	_, err := c.CreateSnapshot(ctx, &csipb.CreateSnapshotRequest{Name: name, SourceVolumeId: id})
	return err
}

func (c *clients) stage(ctx context.Context, id, path string, v *csipb.VolumeCapability) error {
	_, err := c.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: path, VolumeCapability: v})
	return err
}

// TestInfo: what the kubelet and sidecars learn before anything else.
func TestInfo(t *testing.T) {
	c := serve(t)
	info, err := c.GetInfo(t.Context(), &registration.InfoRequest{})
	if err != nil || info.Name != Name || info.Type != registration.CSIPlugin || info.Endpoint != filepath.Join(c.dir, "p", "csi.sock") {
		t.Errorf("%v, %v", info, err)
	}
	node, err := c.NodeGetInfo(t.Context(), &csipb.NodeGetInfoRequest{})
	if err != nil || node.NodeId != "one" || node.AccessibleTopology.Segments["kubernetes.io/hostname"] != "one" {
		t.Errorf("%v, %v", node, err)
	}
	plugin, err := c.GetPluginInfo(t.Context(), &csipb.GetPluginInfoRequest{})
	if err != nil || plugin.Name != Name || plugin.VendorVersion != "v" {
		t.Errorf("%v, %v", plugin, err)
	}
	for _, segments := range []map[string]string{{"kubernetes.io/hostname": "one"}, {"kubernetes.io/hostname": "two"}} {
		got, err := c.GetCapacity(t.Context(), &csipb.GetCapacityRequest{AccessibleTopology: &csipb.Topology{Segments: segments}})
		if err != nil || (got.AvailableCapacity > 0) != (segments["kubernetes.io/hostname"] == "one") {
			t.Errorf("%v: %v, %v", segments, got, err)
		}
	}
}

// TestReadOnly: a pod that may only read does, and sees what another writes.
func TestReadOnly(t *testing.T) {
	need.Root(t)
	c := serve(t)
	v, err := c.CreateVolume(t.Context(), request("v", 8192))
	if err != nil {
		t.Fatal(err)
	}
	id, staged := v.Volume.VolumeId, filepath.Join(c.dir, "staged")
	for i := range 2 {
		if err := c.stage(t.Context(), id, staged, capability()); err != nil {
			t.Fatalf("time %d: %v", i, err)
		}
	}
	targets := map[bool]string{true: filepath.Join(c.dir, "reads"), false: filepath.Join(c.dir, "writes")}
	for readOnly, path := range targets {
		_, err := c.NodePublishVolume(t.Context(), &csipb.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staged, TargetPath: path, VolumeCapability: capability(), Readonly: readOnly})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(targets[false], "f"), []byte("x"), 0o644); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(targets[true], "f")); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	if err := os.WriteFile(filepath.Join(targets[true], "g"), nil, 0o644); err == nil {
		t.Error("one that may only read writes")
	}
	stats, err := c.NodeGetVolumeStats(t.Context(), &csipb.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: targets[true]})
	if err != nil || len(stats.Usage) != 2 || stats.Usage[0].Total == 0 {
		t.Errorf("%v, %v", stats, err)
	}
	if _, err := c.DeleteVolume(t.Context(), &csipb.DeleteVolumeRequest{VolumeId: id}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("delete while it is in use: %v", err)
	}
	for _, path := range targets {
		if _, err := c.NodeUnpublishVolume(t.Context(), &csipb.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path}); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.NodeUnstageVolume(t.Context(), &csipb.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staged}); err != nil {
		t.Error(err)
	}
	if _, err := c.DeleteVolume(t.Context(), &csipb.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Error(err)
	}
}

// TestPanic: one call's panic is that call's error.
func TestPanic(t *testing.T) {
	_, err := guarded(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "m"}, func(context.Context, any) (any, error) { panic("bad") })
	if status.Code(err) != codes.Internal {
		t.Errorf("%v", err)
	}
	if err := coded(errors.Join(disk.ErrBusy)); status.Code(err) != codes.Aborted {
		t.Errorf("%v", err)
	}
}
