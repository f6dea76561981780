package csi

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/internal/need"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/volume"
)

// A node is a driver, and an API server that has CSIDrivers alone.
type node struct {
	*fakeDriver
	root string
	pv   *corev1.PersistentVolume
	new  func() (*Manager, *volume.Manager) // as a start of the kubelet does

	claim  corev1.PersistentVolumeClaim
	device uint32 // what is published as a block device

	operations []volume.Operation
	requests   []Call
}

func newNode(t *testing.T) *node {
	n := &node{device: unix.S_IFBLK | 0o600, fakeDriver: &fakeDriver{}, root: t.TempDir(), pv: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}}
	n.pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h", FSType: "ext4"}
	n.pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	socket := filepath.Join(n.root, "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	csipb.RegisterNodeServer(srv, n)
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(srv.Stop)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		of, name := path.Split(r.URL.Path)
		if path.Base(of) != "csidrivers" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
			return
		}
		_, _ = w.Write([]byte(`{"kind":"CSIDriver","apiVersion":"storage.k8s.io/v1","metadata":{"name":"` + name + `"},"spec":{"attachRequired":false,"volumeLifecycleModes":["Persistent"],"fsGroupPolicy":"File"}}`))
	}))
	t.Cleanup(api.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	n.new = func() (*Manager, *volume.Manager) {
		did := func(o volume.Operation) { n.operations = append(n.operations, o) }
		m := New(Config{RootDir: n.root, NodeName: "n", Client: client, Did: did, Called: func(c Call) { n.requests = append(n.requests, c) }})
		conn, err := dial(socket, m.telling("d"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		for _, name := range []string{"d", "ebs.csi.aws.com"} {
			m.drivers[name] = &driver{name: name, conn: conn, node: csipb.NewNodeClient(conn), stage: true}
		}
		return m, volume.New(volume.Config{PodsDir: filepath.Join(n.root, "pods"), CSI: m, Did: did,
			Claim: func(context.Context, *corev1.Pod, string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, error) {
				return n.pv, &n.claim, nil
			}})
	}
	return n
}

func podWithClaim(group int64) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid"}}
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	return p
}

// TestFailureAfterStaging: what was staged for a pod that never got it leaves
// the node with the pod, also if the kubelet was started anew meanwhile.
func TestFailureAfterStaging(t *testing.T) {
	n := newNode(t)
	n.pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "missing"}
	_, volumes := n.new()
	if _, _, err := volumes.Mount(t.Context(), podtest.Use(podWithClaim(2000)), nil); err == nil {
		t.Fatal("mounted without its secret")
	}
	_, volumes = n.new()
	if err := volumes.Unmount(t.Context(), "uid"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"stage h", "unpublish h", "unstage h"}; !slices.Equal(n.calls, want) {
		t.Errorf("the driver was asked %v, want %v", n.calls, want)
	}
	if left, _ := filepath.Glob(filepath.Join(n.root, "plugins", "kubernetes.io", "csi", "d", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestStagingRefused: a volume whose driver is through with staging it, and has not,
// is not unstaged; one of which nobody knows is, and so is one that was staged before.
func TestStagingRefused(t *testing.T) {
	refused, unsure := status.Error(codes.InvalidArgument, "no"), status.Error(codes.DeadlineExceeded, "later")
	for name, c := range map[string]struct {
		block   bool
		answers []error
		want    string
	}{
		"refused":              {answers: []error{refused, refused}, want: "stage h, stage h, unpublish h"},
		"unsure":               {answers: []error{unsure}, want: "stage h, unpublish h, unstage h"},
		"refused, then unsure": {answers: []error{refused, unsure}, want: "stage h, stage h, unpublish h, unstage h"},
		"unsure, then refused": {answers: []error{unsure, refused}, want: "stage h, stage h, unpublish h, unstage h"},
		"device refused":       {block: true, answers: []error{refused, refused}, want: "stage h, stage h, unpublish h"},
		"device unsure":        {block: true, answers: []error{unsure}, want: "stage h, unpublish h, unstage h"},
	} {
		t.Run(name, func(t *testing.T) {
			n, pod := newNode(t), podtest.Use(podWithClaim(2000))
			if c.block {
				n, pod = newBlockNode(t), podWithDevice("uid")
			}
			for _, n.stageErr = range c.answers {
				_, volumes := n.new()
				if _, _, err := volumes.Mount(t.Context(), pod, nil); err == nil {
					t.Fatal("mounted what was not staged")
				}
			}
			_, volumes := n.new()
			if err := volumes.Unmount(t.Context(), "uid"); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(n.calls, ", "); got != c.want {
				t.Errorf("the driver was asked %s, want %s", got, c.want)
			}
			for _, dir := range []string{"d/*", "volumeDevices/*/*"} {
				if left, _ := filepath.Glob(filepath.Join(n.root, "plugins/kubernetes.io/csi", dir)); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			}
		})
	}
}

// TestUnstagingRefused: a pod goes whose volume stays on the node, which is in use there
// until its driver has taken it off.
func TestUnstagingRefused(t *testing.T) {
	need.Root(t)
	for name, block := range map[string]bool{"file system": false, "device": true} {
		t.Run(name, func(t *testing.T) {
			n, pod := newNode(t), podtest.Use(podWithClaim(2000))
			pod.Spec.SecurityContext = nil
			if block {
				n, pod = newBlockNode(t), podWithDevice("uid")
			}
			n.unstages = []error{status.Error(codes.InvalidArgument, "no"), status.Error(codes.Unavailable, "busy")}
			m, volumes := n.new()
			if _, _, err := volumes.Mount(t.Context(), pod, nil); err != nil {
				t.Fatal(err)
			}
			_ = unix.Unmount(filepath.Join(n.root, "pods/uid/volumes/kubernetes.io~csi/pv/mount"), unix.MNT_DETACH) // as the driver does
			if err := volumes.Unmount(t.Context(), "uid"); err != nil {
				t.Fatal(err)
			}
			if len(m.staged) != 1 {
				t.Error("nobody was told to try again")
			}
			if err := m.Collect(t.Context()); err == nil || !strings.Contains(err.Error(), "busy") {
				t.Error(err)
			}
			if err := m.Collect(t.Context()); err != nil {
				t.Error(err)
			}
			if got, want := strings.Join(n.calls, ", "), "stage h, publish h, unpublish h, unstage h, unstage h, unstage h"; got != want {
				t.Errorf("the driver was asked %s, want %s", got, want)
			}
		})
	}
}

// NodePublishVolume mounts a disk that cannot be written to at first.
func (n *node) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	n.note("publish " + r.VolumeId)
	if r.VolumeCapability.GetBlock() != nil {
		return &csipb.NodePublishVolumeResponse{}, unix.Mknod(r.TargetPath, n.device, int(unix.Mkdev(7, 0)))
	}
	if err := os.MkdirAll(r.TargetPath, 0o755); err != nil {
		return nil, err
	}
	return &csipb.NodePublishVolumeResponse{}, unix.Mount("tmpfs", r.TargetPath, "tmpfs", unix.MS_RDONLY, "")
}

// TestVolumeIsOwnedAtLast: a volume that could not be given to the pod's group
// is not ready, and is given to it at the next attempt.
func TestVolumeIsOwnedAtLast(t *testing.T) {
	need.Root(t)
	n := newNode(t)
	_, volumes := n.new()
	target := filepath.Join(n.root, "pods", "uid", "volumes", "kubernetes.io~csi", "pv", "mount")
	defer func() { _ = unix.Unmount(target, unix.MNT_DETACH) }()
	if _, _, err := volumes.Mount(t.Context(), podtest.Use(podWithClaim(2000)), nil); err == nil {
		t.Fatal("a volume that is not owned is ready")
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	_, volumes = n.new()
	if _, _, err := volumes.Mount(t.Context(), podtest.Use(podWithClaim(2000)), nil); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(target)
	if err != nil {
		t.Fatal(err)
	}
	if gid := st.Sys().(*syscall.Stat_t).Gid; gid != 2000 {
		t.Errorf("the volume belongs to group %d, want 2000", gid)
	}
}

// A volume that a pod names itself and whose plugin a driver has taken over from is this
// driver's; its directories have no name that the pod made up for the disk.
func TestTakenOverVolume(t *testing.T) {
	need.Root(t)
	n := newNode(t)
	pod := podWithClaim(2000)
	pod.Spec.SecurityContext = nil
	name := func(id string) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}}}}
	}
	_, volumes := n.new()
	name("aws://a/../../vol")
	if _, _, err := volumes.Mount(t.Context(), podtest.Use(pod), nil); err == nil || !strings.Contains(err.Error(), "failed to translate in-tree inline volume to CSI") {
		t.Errorf("an identifier that is none: %v", err)
	}
	name("aws://a/vol-12345678")
	if _, _, err := volumes.Mount(t.Context(), podtest.Use(pod), nil); err != nil {
		t.Fatal(err)
	}
	_ = unix.Unmount(filepath.Join(n.root, "pods/uid/volumes/kubernetes.io~csi/v/mount"), unix.MNT_DETACH) // as the driver does
	if err := volumes.Unmount(t.Context(), "uid"); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(n.calls, ", "), "stage vol-12345678, publish vol-12345678, unpublish vol-12345678, unstage vol-12345678"; got != want {
		t.Errorf("the driver was asked %s, want %s", got, want)
	}
}
