package scheduler_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAttachedVolumes: a volume that is still attached to the node, and no pod's, takes
// the place of a pod's volume there until it is detached.
func TestAttachedVolumes(t *testing.T) {
	in(t, func(w *world) {
		must := func(err error) {
			w.Helper()
			if err != nil {
				w.Fatal(err)
			}
		}
		w.node("n", "2")
		csi := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		csi.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "d.example.com", NodeID: "n", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(1))}}}
		_, err := w.client.StorageV1().CSINodes().Create(w.ctx, csi, metav1.CreateOptions{})
		must(err)
		for _, name := range []string{"left", "mine"} {
			v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
			v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
			v.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: name}
			v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: name}
			_, err := w.client.CoreV1().PersistentVolumes().Create(w.ctx, v, metav1.CreateOptions{})
			must(err)
		}
		va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		va.Spec = storagev1.VolumeAttachmentSpec{Attacher: "d.example.com", NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("left")}}
		_, err = w.client.StorageV1().VolumeAttachments().Create(w.ctx, va, metav1.CreateOptions{})
		must(err)
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "mine", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}}}
		c.Spec.AccessModes, c.Spec.VolumeName = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, "mine"
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		_, err = w.client.CoreV1().PersistentVolumeClaims("default").Create(w.ctx, c, metav1.CreateOptions{})
		must(err)
		synctest.Wait() // the pod comes by a watch of its own, and may be faster
		w.pod("p", "1", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "mine"}}}}
		})
		if on := w.where("p", time.Minute); on != "" {
			w.Fatalf("on %s beside the volume that is attached", on)
		}
		if got := strings.Join(w.events(), "\n"); !strings.Contains(got, "0/1 nodes are available: 1 node(s) exceed max volume count.") {
			w.Errorf("events: %s", got)
		}
		must(w.client.StorageV1().VolumeAttachments().Delete(w.ctx, "a", metav1.DeleteOptions{}))
		if on := w.where("p", 10*time.Second); on != "n" {
			w.Error("not placed when the volume is detached")
		}
	})
}

// TestDisksOfPods: a disk that pods name themselves is had by one of a node, and by the
// next when the first goes.
func TestDisksOfPods(t *testing.T) {
	in(t, func(w *world) {
		w.node("n", "4")
		disk := func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "1.2.3.4", IQN: "iqn.2016-08.com.example:a"}}}}
		}
		w.pod("first", "1", disk)
		if on := w.where("first", time.Second); on != "n" {
			w.Fatalf("the first is on %q", on)
		}
		w.pod("second", "1", disk)
		if on := w.where("second", time.Minute); on != "" {
			w.Fatal("both are on the node")
		}
		if got := strings.Join(w.events(), "\n"); !strings.Contains(got, "0/1 nodes are available: 1 node(s) had no available disk.") {
			w.Errorf("events: %s", got)
		}
		if err := w.client.CoreV1().Pods("default").Delete(w.ctx, "first", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			w.Fatal(err)
		}
		if on := w.where("second", 10*time.Second); on != "n" {
			w.Error("not placed when the first is gone")
		}
	})
}
