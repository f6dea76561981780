package controllermanager

import (
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var protectors = []string{"persistentvolumeclaim-protection-controller", "persistentvolume-protection-controller",
	"volumeattributesclass-protection-controller", "serviceaccount-controller"}

// What describes storage outlives its deletion while it is used.
func TestStorageInUse(t *testing.T) {
	inCluster(t, protectors, func(c *cluster) {
		core := c.client.CoreV1()
		claim := func(name string) *corev1.PersistentVolumeClaim {
			return &corev1.PersistentVolumeClaim{ObjectMeta: meta(name), Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeAttributesClassName: new("fast"),
				Resources: corev1.VolumeResourceRequirements{Requests: amounts("storage=1Gi")}}}
		}
		_, err := c.client.StorageV1().VolumeAttributesClasses().Create(c.ctx, &storagev1.VolumeAttributesClass{ObjectMeta: meta("fast"), DriverName: "d.example.com", Parameters: map[string]string{"a": "b"}}, metav1.CreateOptions{})
		c.no(err)
		for _, name := range []string{"used", "unused", "own-v"} {
			made, err := core.PersistentVolumeClaims("default").Create(c.ctx, claim(name), metav1.CreateOptions{})
			c.no(err)
			if !slices.Equal(made.Finalizers, []string{"kubernetes.io/pvc-protection"}) {
				t.Errorf("finalizers %v", made.Finalizers)
			}
		}
		volume, err := core.PersistentVolumes().Create(c.ctx, &corev1.PersistentVolume{ObjectMeta: meta("v"), Spec: corev1.PersistentVolumeSpec{
			Capacity: amounts("storage=1Gi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}}}, metav1.CreateOptions{})
		c.no(err)
		volume.Status.Phase = corev1.VolumeBound
		_, err = core.PersistentVolumes().UpdateStatus(c.ctx, volume, metav1.UpdateOptions{})
		c.no(err)
		pod := &corev1.Pod{ObjectMeta: meta("own"), Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}, Volumes: []corev1.Volume{
			{Name: "u", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "used"}}},
			// Not this pod's: nobody owns the claim of that name.
			{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: claim("").Spec}}}},
		}}}
		_, err = core.Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
		c.no(err)

		for _, name := range []string{"used", "unused", "own-v"} {
			c.no(core.PersistentVolumeClaims("default").Delete(c.ctx, name, metav1.DeleteOptions{}))
		}
		c.no(core.PersistentVolumes().Delete(c.ctx, "v", metav1.DeleteOptions{}))
		c.no(c.client.StorageV1().VolumeAttributesClasses().Delete(c.ctx, "fast", metav1.DeleteOptions{}))
		claims := func() (names []string) {
			list, err := core.PersistentVolumeClaims("default").List(c.ctx, metav1.ListOptions{})
			c.no(err)
			for _, o := range list.Items {
				names = append(names, o.Name)
			}
			return names
		}
		c.until("only the used claim is left", func() (bool, error) { return slices.Equal(claims(), []string{"used"}), nil })
		synctest.Wait()
		_, err = core.PersistentVolumes().Get(c.ctx, "v", metav1.GetOptions{})
		c.no(err)
		_, err = c.client.StorageV1().VolumeAttributesClasses().Get(c.ctx, "fast", metav1.GetOptions{})
		c.no(err)

		c.no(core.Pods("default").Delete(c.ctx, "own", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
		c.until("the claim is gone", func() (bool, error) { return len(claims()) == 0, nil })
		volume, err = core.PersistentVolumes().Get(c.ctx, "v", metav1.GetOptions{})
		c.no(err)
		volume.Status.Phase = corev1.VolumeReleased
		_, err = core.PersistentVolumes().UpdateStatus(c.ctx, volume, metav1.UpdateOptions{})
		c.no(err)
		c.until("volume and class are gone", func() (bool, error) {
			_, err := core.PersistentVolumes().Get(c.ctx, "v", metav1.GetOptions{})
			_, err2 := c.client.StorageV1().VolumeAttributesClasses().Get(c.ctx, "fast", metav1.GetOptions{})
			return apierrors.IsNotFound(err) && apierrors.IsNotFound(err2), err
		})
	})
}

// What was made before there was protection gets it.
func TestStorageProtectedLater(t *testing.T) {
	inCluster(t, protectors, func(c *cluster) {
		volumes := c.client.CoreV1().PersistentVolumes()
		v, err := volumes.Create(c.ctx, &corev1.PersistentVolume{ObjectMeta: meta("v"), Spec: corev1.PersistentVolumeSpec{
			Capacity: amounts("storage=1Gi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}}}, metav1.CreateOptions{})
		c.no(err)
		v.Finalizers = nil
		_, err = volumes.Update(c.ctx, v, metav1.UpdateOptions{})
		c.no(err)
		c.until("it is protected again", func() (bool, error) {
			v, err := volumes.Get(c.ctx, "v", metav1.GetOptions{})
			return err == nil && slices.Contains(v.Finalizers, "kubernetes.io/pv-protection"), err
		})
	})
}
