package controllermanager

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// grown says by how much counters have grown since they were looked at.
type grown struct {
	t      *testing.T
	before map[string]float64
}

func (g *grown) by(name string, values ...string) float64 {
	key := name
	for _, v := range values {
		key += " " + v
	}
	now := counted(g.t, name, values...)
	was := g.before[key]
	g.before[key] = now
	return now - was
}

// TestMetricsOfAttachments: an attachment and its end are counted once, with what pods on
// nodes have meanwhile.
func TestMetricsOfAttachments(t *testing.T) {
	inCluster(t, attacher, func(c *cluster) {
		g := &grown{t, map[string]float64{}}
		const operations, driver = "storage_operation_duration_seconds", "kubernetes.io/csi:d.example.com"
		g.by(operations, "volume_attach", "success")
		g.by(operations, "volume_detach", "success")
		c.join("n1")
		c.disk("a")
		c.place("p", "n1", "a")
		c.place("q", "n1", "a")
		c.until("it is being attached", func() (bool, error) { return c.disks() == "a attaching to n1", nil })
		if n := counted(t, "storage_count_attachable_volumes_in_use", "n1", driver); n != 2 {
			t.Errorf("%v volumes of pods, want 2", n)
		}
		if want, is := counted(t, "attachdetach_controller_total_volumes", driver, "desired_state_of_world"), counted(t, "attachdetach_controller_total_volumes", "actual_state_of_world"); want != 1 || is != 0 {
			t.Errorf("%v volumes to be attached, %v attached", want, is)
		}
		c.attachAll()
		c.until("the node has it", func() (bool, error) { return c.disks() == "a attached to n1, n1 has a", nil })
		if n := counted(t, "attachdetach_controller_total_volumes", driver, "actual_state_of_world"); n != 1 {
			t.Errorf("%v volumes attached", n)
		}
		if n := g.by(operations, "volume_attach", "success"); n != 1 {
			t.Errorf("%v attachments counted", n)
		}
		c.kill("p")
		c.kill("q")
		c.until("it is gone", func() (bool, error) { return c.disks() == "", nil })
		time.Sleep(time.Second)
		if n := g.by(operations, "volume_detach", "success"); n != 1 {
			t.Errorf("%v detachments counted", n)
		}
	})
}

// TestMetricsOfVolumes: the making of a volume is counted from when its provisioner was named
// until its claim has it, its end until it is gone; a class that comes later, once.
func TestMetricsOfVolumes(t *testing.T) {
	inCluster(t, binder, func(c *cluster) {
		g := &grown{t, map[string]float64{}}
		g.by("retroactive_storageclass_total")
		g.by("volume_operation_total_seconds", "provision", "d.example.com")
		g.by("volume_operation_total_seconds", "delete", "d.example.com")
		core := c.client.CoreV1()
		c.claim(claimOf("a", "1Gi"))
		c.stored("a Pending")
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "gold", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}, Provisioner: "d.example.com"}
		_, err := c.client.StorageV1().StorageClasses().Create(c.ctx, class, metav1.CreateOptions{})
		c.no(err)
		var a *corev1.PersistentVolumeClaim
		c.until("its provisioner is named", func() (bool, error) {
			a, err = core.PersistentVolumeClaims("default").Get(c.ctx, "a", metav1.GetOptions{})
			return err == nil && a.Annotations["volume.kubernetes.io/storage-provisioner"] == "d.example.com", err
		})
		if n := counted(t, "pv_collector_unbound_pvc_count", "default", "gold"); n != 1 {
			t.Errorf("%v claims wait", n)
		}
		if n := g.by("retroactive_storageclass_total"); n != 1 {
			t.Errorf("%v claims got their class later", n)
		}
		c.volume(volumeOf("v", "1Gi", func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "h"}}
			v.Spec.StorageClassName, v.Spec.PersistentVolumeReclaimPolicy = "gold", corev1.PersistentVolumeReclaimDelete
			v.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "d.example.com"}
			v.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "default", Name: "a", UID: a.UID}
		}))
		c.stored("a Bound v, v Bound a")
		time.Sleep(time.Second)
		for _, of := range [][]string{{"pv_collector_bound_pv_count", "gold"}, {"pv_collector_bound_pvc_count", "default", "gold"}, {"pv_collector_total_pv_count", "kubernetes.io/csi:d.example.com", "Filesystem"}} {
			if n := counted(t, of[0], of[1:]...); n != 1 {
				t.Errorf("%v: %v", of, n)
			}
		}
		if n := g.by("volume_operation_total_seconds", "provision", "d.example.com"); n != 1 {
			t.Errorf("%v volumes made", n)
		}
		c.no(core.PersistentVolumeClaims("default").Delete(c.ctx, "a", metav1.DeleteOptions{}))
		c.stored("v Released a")
		_, err = core.PersistentVolumes().Patch(c.ctx, "v", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		c.no(err)
		c.no(core.PersistentVolumes().Delete(c.ctx, "v", metav1.DeleteOptions{}))
		c.until("the volume is gone", func() (bool, error) { return c.storage() == "", nil })
		time.Sleep(time.Second)
		if n := g.by("volume_operation_total_seconds", "delete", "d.example.com"); n != 1 {
			t.Errorf("%v volumes deleted", n)
		}
	})
}
