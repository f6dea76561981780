package csi

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/volume"
)

// fakeDriver notes what it is asked.
type fakeDriver struct {
	csipb.UnimplementedNodeServer
	mu    sync.Mutex
	calls []string

	stageErr  error
	unstages  []error // the answers to the next calls
	expandErr error
	usage     []*csipb.VolumeUsage
}

func (f *fakeDriver) note(s string) { f.mu.Lock(); f.calls = append(f.calls, s); f.mu.Unlock() }
func (f *fakeDriver) NodeStageVolume(_ context.Context, r *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	f.note("stage " + r.VolumeId)
	return &csipb.NodeStageVolumeResponse{}, f.stageErr
}
func (f *fakeDriver) NodeUnstageVolume(_ context.Context, r *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	f.note("unstage " + r.VolumeId)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.unstages) > 0 {
		err := f.unstages[0]
		f.unstages = f.unstages[1:]
		return &csipb.NodeUnstageVolumeResponse{}, err
	}
	return &csipb.NodeUnstageVolumeResponse{}, nil
}
func (f *fakeDriver) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	f.note("publish " + r.VolumeId)
	return &csipb.NodePublishVolumeResponse{}, nil
}
func (f *fakeDriver) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	f.note("unpublish " + r.VolumeId)
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

func (f *fakeDriver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	f.note("info")
	return &csipb.NodeGetInfoResponse{NodeId: "id", MaxVolumesPerNode: 3}, nil
}

// A staged volume leaves the node with the last pod that has it.
func TestUnmountUnstagesLast(t *testing.T) {
	root := t.TempDir()
	f := &fakeDriver{}
	socket := filepath.Join(root, "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	csipb.RegisterNodeServer(srv, f)
	go func() { _ = srv.Serve(ln) }()
	defer srv.Stop()
	conn, err := dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	m := New(Config{RootDir: root, NodeName: "n"})
	m.drivers["d"] = &driver{name: "d", conn: conn, node: csipb.NewNodeClient(conn), stage: true}

	target := func(uid string) string {
		return filepath.Join(root, "pods", uid, "volumes", "kubernetes.io~csi", "pv", "mount")
	}
	for _, uid := range []string{"a", "b"} {
		dir := filepath.Dir(target(uid))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := note(dir, record{Handle: "h", Driver: "d"}); err != nil {
			t.Fatal(err)
		}
	}
	staging := m.stagingDir("d", "h")
	if err := os.MkdirAll(staging, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := note(staging, record{Handle: "h", Driver: "d"}); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"a", "b", "b"} { // twice does no harm
		if err := m.Unmount(context.Background(), target(uid)); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"unpublish h", "unpublish h", "unstage h"}; !slices.Equal(f.calls, want) {
		t.Errorf("%v", f.calls)
	}
	if err := note(filepath.Dir(target("a")), record{Handle: "h", Driver: "gone"}); err != nil {
		t.Fatal(err)
	}
	if err := m.Unmount(context.Background(), target("a")); err == nil || err.Error() != "driver name gone not found in the list of registered CSI drivers: the driver's pod on this node must run until the volume is unmounted" {
		t.Error(err)
	}
}

func TestAccessMode(t *testing.T) {
	for _, c := range []struct {
		modes   string
		writers bool
		want    csipb.VolumeCapability_AccessMode_Mode
	}{
		{"", false, csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		{"ReadWriteOnce", false, csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		{"ReadWriteOnce", true, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		{"ReadWriteOncePod", false, csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		{"ReadWriteOncePod", true, csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		{"ReadOnlyMany", true, csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		{"ReadWriteMany ReadOnlyMany", true, csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
	} {
		var modes []corev1.PersistentVolumeAccessMode
		for m := range strings.FieldsSeq(c.modes) {
			modes = append(modes, corev1.PersistentVolumeAccessMode(m))
		}
		if got := accessMode(modes, c.writers); got != c.want {
			t.Errorf("%s, %t: %v", c.modes, c.writers, got)
		}
	}
}

// A driver serves the kinds of volumes that its CSIDriver says, and persistent
// ones if it has none.
func TestPermits(t *testing.T) {
	both := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	for _, c := range []struct {
		name      string
		modes     []storagev1.VolumeLifecycleMode
		ephemeral bool
		want      string
	}{
		{"", nil, false, ""},
		{"", nil, true, `volume mode "Ephemeral" not supported by driver d (no CSIDriver object)`},
		{"d", both, true, ""}, {"d", both, false, ""}, {"d", both[:1], false, ""},
		{"d", both[:1], true, `volume mode "Ephemeral" not supported by driver d (only supports ["Persistent"])`},
		{"d", both[1:], false, `volume mode "Persistent" not supported by driver d (only supports ["Ephemeral"])`},
	} {
		about := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Spec: storagev1.CSIDriverSpec{VolumeLifecycleModes: c.modes}}
		got := ""
		if err := permits(request{driver: "d", ephemeral: c.ephemeral}, about); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestOwnable(t *testing.T) {
	once := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	none, file := storagev1.NoneFSGroupPolicy, storagev1.FileFSGroupPolicy
	for _, c := range []struct {
		r      request
		policy *storagev1.FSGroupPolicy
		want   bool
	}{
		{request{modes: once, fsType: "ext4"}, nil, true}, {request{modes: once}, nil, false},
		{request{modes: once, fsType: "ext4"}, &none, false}, {request{}, &file, true},
	} {
		if got := ownable(c.r, &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{FSGroupPolicy: c.policy}}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestParseInline(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: "u"}}
	r, err := parse(p, volume.Spec{Name: "v", Inline: &corev1.CSIVolumeSource{Driver: "d"}})
	if err != nil || !r.ephemeral || !strings.HasPrefix(r.handle, "csi-") {
		t.Errorf("%+v %v", r, err)
	}
	if _, err := parse(p, volume.Spec{}); err == nil {
		t.Error("nothing was taken for a volume")
	}
}
