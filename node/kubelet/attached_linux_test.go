package kubelet

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authuser "k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"knarr/internal/apitest"
	"knarr/node/kubelet/podtest"
)

// A storageDriver is a CSI driver and its registrar behind one socket.
type storageDriver struct {
	csipb.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	mu    sync.Mutex
	calls []string
}

func (d *storageDriver) call(words ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, strings.Join(words, " "))
}

func (d *storageDriver) called() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.calls, ", ")
}

func (d *storageDriver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: "d.example.com", SupportedVersions: []string{"1.0.0"}}, nil
}
func (d *storageDriver) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}
func (d *storageDriver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: "id"}, nil
}
func (d *storageDriver) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	return &csipb.NodeGetCapabilitiesResponse{Capabilities: []*csipb.NodeServiceCapability{{Type: &csipb.NodeServiceCapability_Rpc{
		Rpc: &csipb.NodeServiceCapability_RPC{Type: csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}}}}}, nil
}
func (d *storageDriver) NodeStageVolume(_ context.Context, r *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	d.call("stage", r.VolumeId, r.PublishContext["device"])
	return &csipb.NodeStageVolumeResponse{}, nil
}
func (d *storageDriver) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	d.call("publish", r.VolumeId, r.PublishContext["device"])
	return &csipb.NodePublishVolumeResponse{}, os.MkdirAll(r.TargetPath, 0o750)
}
func (d *storageDriver) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	d.call("unpublish", r.VolumeId)
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}
func (d *storageDriver) NodeUnstageVolume(_ context.Context, r *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	d.call("unstage", r.VolumeId)
	return &csipb.NodeUnstageVolumeResponse{}, nil
}

// serve lets kubelets find the driver in their root directory.
func (d *storageDriver) serve(t *testing.T, root string) {
	dir := filepath.Join(root, "plugins_registry")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", filepath.Join(dir, "d.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	csipb.RegisterNodeServer(s, d)
	registration.RegisterRegistrationServer(s, d)
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(s.Stop)
}

const diskName = "kubernetes.io/csi/d.example.com^disk"

// createDisk makes a claim bound to a volume of the driver, and a pod that has it.
func createDisk(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	core := c.CoreV1()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes, class := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, ""
	claim, err := core.PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes, VolumeName: "pv", StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: size}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size, AccessModes: modes}
	if _, err := core.PersistentVolumeClaims("default").UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{Capacity: size, AccessModes: modes,
		ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "c", UID: claim.UID}}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "disk"}
	if _, err := core.PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	no := false
	pod := podtest.Pod("p", "a")
	pod.ObjectMeta = metav1.ObjectMeta{Name: "p", Namespace: "default"}
	pod.Status = corev1.PodStatus{}
	pod.Spec.NodeName, pod.Spec.AutomountServiceAccountToken = "n1", &no
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	if _, err := core.Pods("default").Create(ctx, podtest.Use(pod), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A volume is mounted when the Node says that it is in use and attached, also
// across a restart, and is in use no more when the pod is gone. The kubelet may
// do no more than a node may.
func TestAttachedVolume(t *testing.T) {
	s, _ := apitest.New(t)
	admin := s.Client(t)
	n, d := newNode(t), &storageDriver{}
	n.config = func(c *Config) {
		c.Kube = s.Config(&authuser.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes", "system:authenticated"}})
	}
	d.serve(t, filepath.Join(n.dir, "kubelet"))
	stop := n.start()
	get := func() *corev1.Node {
		o, err := admin.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			return &corev1.Node{}
		}
		return o
	}
	n.until("the driver is shown", func() bool {
		return strings.Contains(get().Annotations["csi.volume.kubernetes.io/nodeid"], "d.example.com")
	})
	createDisk(t, admin)
	inUse := func() bool {
		used := get().Status.VolumesInUse
		return len(used) == 1 && used[0] == diskName
	}
	n.until("the volume is in use", inUse)
	if got := d.called(); got != "" {
		t.Fatalf("before it is attached: %s", got)
	}
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csi-%x", sha256.Sum256([]byte("disk"+"d.example.com"+"n1")))},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: "d.example.com", NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv")}}}
	a, err := admin.StorageV1().VolumeAttachments().Create(t.Context(), a, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "sdb"}}
	if _, err := admin.StorageV1().VolumeAttachments().UpdateStatus(t.Context(), a, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"status":{"volumesAttached":[{"name":"` + diskName + `","devicePath":""}]}}`)
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), "n1", "application/merge-patch+json", patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	n.until("the pod runs", func() bool { return len(n.rt.Running()) == 1 })
	// The driver mounts nothing, so that it is asked again when what the pod's
	// volumes are made of changes.
	const calls = "stage disk sdb, publish disk sdb, "
	if got := d.called() + ", "; got == ", " || strings.ReplaceAll(got, calls, "") != "" {
		t.Errorf("the driver was asked: %s", got)
	}
	stop()
	n.start()
	n.until("the volume is in use still", inUse)
	if err := admin.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.until("the volume is not in use", func() bool { return len(get().Status.VolumesInUse) == 0 })
	if got := d.called(); !strings.HasSuffix(got, "unpublish disk, unstage disk") {
		t.Errorf("the driver was asked: %s", got)
	}
	if got := get().Status.VolumesAttached; len(got) != 1 {
		t.Errorf("the kubelet has changed what is attached: %v", got)
	}
}
