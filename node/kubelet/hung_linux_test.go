package kubelet

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"knarr/node/kubelet/podtest"
)

// TestHungMountHoldsUpNothing: with a volume that does not answer any more,
// limits are enforced, statistics are reported, other pods come and go, and the
// volume's pod is deleted.
func TestHungMountHoldsUpNothing(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	for _, name := range []string{"stuck", "other"} {
		p := podtest.Pod(name, name)
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")}
		p.Spec.Volumes = []corev1.Volume{{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		n.api.addPod(p)
		n.until("ready", n.ready(name))
	}
	stuck := n.k.volumes.PodDir("uid-stuck")
	podtest.Hang(t, filepath.Join(stuck, "volumes", "kubernetes.io~nfs", "pv"))
	podtest.Hang(t, filepath.Join(stuck, "volumes", "kubernetes.io~empty-dir", "empty", "by-a-container"))
	if err := os.WriteFile(filepath.Join(stuck, "volumes", "kubernetes.io~empty-dir", "empty", "file"), make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	podtest.Within(t, "eviction", func() error { n.k.enforceLimits(t.Context()); return nil })
	if got := n.k.storageOf("uid-stuck").volumes["empty"].Bytes; got < 64<<10 {
		t.Errorf("%d bytes measured in the volume in which a mount hangs", got)
	}
	podtest.Within(t, "the node's statistics", func() error {
		_, err := n.k.summary(t.Context(), false)
		return err
	})
	for _, name := range []string{"other", "stuck"} {
		n.api.deletePod(name)
		n.until(name+" is gone", func() bool { return n.api.pod(name) == nil })
	}
	n.until("the pod's directory is gone", func() bool { _, err := os.Lstat(stuck); return os.IsNotExist(err) })

	stop()
	leftDir := n.k.volumes.PodDir("uid-left")
	podtest.Hang(t, filepath.Join(leftDir, "volumes", "kubernetes.io~nfs", "pv"))
	left := filepath.Join(n.dir, "logs", "ns_left_uid-left")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.until("what a pod left is gone", func() bool {
		_, dir := os.Lstat(leftDir)
		_, logs := os.Lstat(left)
		return os.IsNotExist(dir) && os.IsNotExist(logs)
	})
}
