package csi

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/need"
)

func newBlockNode(t *testing.T) *node {
	need.Root(t)
	n := newNode(t)
	block := corev1.PersistentVolumeBlock
	n.pv.Spec.VolumeMode, n.claim.Spec.VolumeMode = &block, &block
	return n
}

func podWithDevice(uid string) *corev1.Pod {
	p := podWithClaim(2000)
	p.UID = types.UID(uid)
	p.Spec.Containers = []corev1.Container{{Name: "c", VolumeDevices: []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}}}}
	return p
}

// A block volume is staged once, published for each pod, and leaves the node with
// the last of them, whatever starts the kubelet has seen meanwhile.
func TestBlockDevice(t *testing.T) {
	n := newBlockNode(t)
	for _, uid := range []string{"a", "b", "b"} {
		_, volumes := n.new()
		got, _, err := volumes.Mount(t.Context(), podWithDevice(uid), nil)
		if err != nil {
			t.Fatal(err)
		}
		want := filepath.Join(n.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv", uid)
		link, err := os.Readlink(filepath.Join(n.root, "pods", uid, "volumeDevices/kubernetes.io~csi/pv"))
		if got["v"].Device != want || link != want || err != nil {
			t.Errorf("%+v, %s %v", got["v"], link, err)
		}
	}
	for _, uid := range []string{"a", "a", "b"} {
		_, volumes := n.new()
		if err := volumes.Unmount(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"stage h", "publish h", "stage h", "publish h", "unpublish h", "unpublish h", "unstage h"}; !slices.Equal(n.calls, want) {
		t.Errorf("the driver was asked %v, want %v", n.calls, want)
	}
	if left, _ := filepath.Glob(filepath.Join(n.root, "plugins/kubernetes.io/csi/volumeDevices/*/*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// What is left of a pod that ended while no kubelet ran goes too.
func TestBlockDeviceIsCollected(t *testing.T) {
	n := newBlockNode(t)
	_, volumes := n.new()
	if _, _, err := volumes.Mount(t.Context(), podWithDevice("a"), nil); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(n.root, "pods", "a")); err != nil {
		t.Fatal(err)
	}
	m, _ := n.new()
	if err := m.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if last := n.calls[len(n.calls)-1]; last != "unstage h" {
		t.Errorf("the driver was asked %v", n.calls)
	}
}

// A pod gets no device of a driver that has not made one, nor a device where it
// wants a file system.
func TestNoBlockDevice(t *testing.T) {
	n := newBlockNode(t)
	_, volumes := n.new()
	mounts := podWithDevice("a")
	mounts.Spec.Containers[0].VolumeDevices, mounts.Spec.Containers[0].VolumeMounts = nil, []corev1.VolumeMount{{Name: "v", MountPath: "/x"}}
	if _, _, err := volumes.Mount(t.Context(), mounts, nil); err == nil || !strings.Contains(err.Error(), "volume v has volumeMode Block, but is specified in volumeMounts") {
		t.Error(err)
	}
	n.device = unix.S_IFREG | 0o600
	if _, _, err := volumes.Mount(t.Context(), podWithDevice("a"), nil); err == nil || !strings.Contains(err.Error(), "is not a block device") {
		t.Error(err)
	}
	file := corev1.PersistentVolumeFilesystem
	n.claim.Spec.VolumeMode = &file
	if _, _, err := volumes.Mount(t.Context(), podWithDevice("a"), nil); err == nil || !strings.Contains(err.Error(), "volume v has volumeMode Filesystem, but is specified in volumeDevices") {
		t.Error(err)
	}
}
