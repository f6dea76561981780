package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/podtest"
)

// TestHungMount: a pod whose volume does not answer any more is refreshed,
// unmounted and removed, with what is mounted inside of the volume too.
func TestHungMount(t *testing.T) {
	dir := t.TempDir()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.NFS = &corev1.NFSVolumeSource{Server: "192.0.2.1", Path: "/"}
	m := New(Config{PodsDir: dir, AnswerTime: 100 * time.Millisecond,
		Claim: func(context.Context, *corev1.Pod, string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, error) {
			return pv, &corev1.PersistentVolumeClaim{}, nil
		}})
	target := filepath.Join(dir, "uid", "volumes", "kubernetes.io~nfs", "pv")
	podtest.Hang(t, target)
	podtest.Within(t, "Mount", func() error {
		_, _, err := m.Mount(t.Context(), podtest.Use(pod), nil)
		return err
	})
	podtest.Within(t, "Unmount", func() error { return m.Unmount(t.Context(), "uid") })
	podtest.Within(t, "removing", func() error {
		if _, err := os.Lstat(filepath.Join(dir, "uid")); !os.IsNotExist(err) {
			return fmt.Errorf("the pod's directory is there: %v", err)
		}
		return nil
	})
}

// TestHungLocalVolume: a pod waits with an error for a local volume or a host
// path that does not answer, and its deletion does not wait.
func TestHungLocalVolume(t *testing.T) {
	dir, hung := t.TempDir(), t.TempDir()
	podtest.Hang(t, hung)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: hung}
	directory := corev1.HostPathDirectory
	m := New(Config{PodsDir: dir, AnswerTime: 100 * time.Millisecond,
		Claim: func(context.Context, *corev1.Pod, string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, error) {
			return pv, &corev1.PersistentVolumeClaim{}, nil
		}})
	for name, source := range map[string]corev1.VolumeSource{
		"local":    {PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
		"hostPath": {HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(hung, "x"), Type: &directory}},
	} {
		pod.Spec.Volumes[0].VolumeSource = source
		podtest.Within(t, name, func() error {
			if _, _, err := m.Mount(t.Context(), podtest.Use(pod), nil); err == nil {
				return fmt.Errorf("mounted")
			}
			return nil
		})
	}
	podtest.Within(t, "a subPath", func() error {
		if _, err := m.SubPath(t.Context(), "uid", "v", "c", 0, hung, "sub"); err == nil {
			return fmt.Errorf("bound")
		}
		return nil
	})
	podtest.Within(t, "Unmount", func() error { return m.Unmount(t.Context(), "uid") })
}
