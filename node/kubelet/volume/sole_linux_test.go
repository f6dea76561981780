package volume

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/need"
	"knarr/node/kubelet/podtest"
)

// TestSolePod: a volume for one pod alone is kept from others until that one is
// gone, across a restart too.
func TestSolePod(t *testing.T) {
	need.Root(t)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: t.TempDir()}
	config := Config{PodsDir: t.TempDir(), Claim: func(context.Context, *corev1.Pod, string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, error) {
		return pv, &corev1.PersistentVolumeClaim{}, nil
	}}
	mount := func(m *Manager, uid types.UID) error {
		p := podWith(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}})
		p.UID = uid
		t.Cleanup(func() { _ = m.Unmount(context.Background(), string(uid)) })
		_, _, err := m.Mount(t.Context(), podtest.Use(p), nil)
		return err
	}
	const want = `MountVolume.SetUp failed for volume "pv" : volume uses the ReadWriteOncePod access mode and is already in use by another pod`
	m := New(config)
	if err := mount(m, "a"); err != nil {
		t.Fatal(err)
	}
	if err := mount(m, "a"); err != nil {
		t.Errorf("the same pod: %v", err)
	}
	for name, m := range map[string]*Manager{"at once": m, "after a restart": New(config)} {
		if err := mount(m, "b"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("another pod %s: %v", name, err)
		}
	}
	if err := m.Unmount(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := mount(m, "b"); err != nil {
		t.Errorf("another pod, after the first: %v", err)
	}
}
