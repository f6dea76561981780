package controllermanager

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/apitest"
)

const hostPathClass = "provisioner: kubernetes.io/host-path"

// hostPaths is where volumes of a scenario are.
var hostPaths = filepath.Join(os.TempDir(), fmt.Sprint("knarr-hostpaths-", os.Getpid()))

// TestHostPathVolumes: claims get directories of this host, which go with them; what is
// not such a directory stays.
func TestHostPathVolumes(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "hostpath_pv")
	inClusterOf(t, func(s *apitest.Server) Config {
		cfg := config(s, binder...)
		cfg.PersistentVolume.HostPaths = directory
		return cfg
	}, func(c *cluster) {
		api := c.client.CoreV1()
		c.create(classes, "{metadata: {name: here}, "+hostPathClass+"}")
		c.create(classes, "{metadata: {name: kept}, "+hostPathClass+", reclaimPolicy: Retain}")
		c.create(classes, "{metadata: {name: later}, "+hostPathClass+", volumeBindingMode: WaitForFirstConsumer}")
		c.create(core+"persistentvolumeclaims", claimOfClass("a", "here"))
		c.create(core+"persistentvolumeclaims", claimOfClass("b", "kept"))
		c.claim(claimOf("block", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.StorageClassName, claim.Spec.VolumeMode = new("here"), new(corev1.PersistentVolumeBlock)
		}))
		c.claim(claimOf("lost", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.StorageClassName, claim.Annotations = new("later"), map[string]string{"volume.kubernetes.io/selected-node": "nowhere"}
		}))
		volume := func(claim string) *corev1.PersistentVolume {
			c.Helper()
			p, err := api.PersistentVolumeClaims("default").Get(c.ctx, claim, metav1.GetOptions{})
			c.no(err)
			v, err := api.PersistentVolumes().Get(c.ctx, "pvc-"+string(p.UID), metav1.GetOptions{})
			c.no(err)
			if p.Status.Phase != corev1.ClaimBound || v.Status.Phase != corev1.VolumeBound || v.Spec.ClaimRef.UID != p.UID || v.Spec.HostPath.Path != filepath.Join(directory, string(p.UID)) {
				c.Errorf("%s: %s, %+v", claim, p.Status.Phase, v)
			}
			return v
		}
		time.Sleep(time.Minute)
		a, b := volume("a"), volume("b")
		if got := a.Annotations; got["pv.kubernetes.io/provisioned-by"] != "kubernetes.io/host-path" || got["kubernetes.io/createdby"] != "hostpath-dynamic-provisioner" || got["pv.kubernetes.io/bound-by-controller"] != "yes" {
			t.Errorf("annotations %v", got)
		}
		if size := a.Spec.Capacity[corev1.ResourceStorage]; size.String() != "1Gi" || a.Spec.StorageClassName != "here" || a.Spec.AccessModes[0] != corev1.ReadWriteOnce || b.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
			t.Errorf("%+v, %+v", a.Spec, b.Spec)
		}
		if got := strings.Join(a.Finalizers, " ") + "; " + strings.Join(b.Finalizers, " "); !strings.Contains(got, "kubernetes.io/pv-controller;") && !strings.Contains(got, "kubernetes.io/pv-controller ") {
			t.Errorf("finalizers %s", got)
		}
		if is, err := os.Stat(a.Spec.HostPath.Path); err != nil || is.Mode().Perm() != 0o750 {
			t.Errorf("%v, %v", is, err)
		}
		c.reported("a", "ProvisioningSucceeded", "Successfully provisioned volume "+a.Name+" using kubernetes.io/host-path")
		c.reported("block", "ProvisioningFailed", `Failed to provision volume with StorageClass "here": kubernetes.io/host-path does not support block volume provisioning`)
		c.reported("lost", "ProvisioningFailed", `Failed to get target node: node "nowhere" not found`)

		// A volume that says it is another's directory is not.
		forged := volumeOf("forged", "1Gi", func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy, v.Spec.HostPath.Path = corev1.PersistentVolumeReclaimDelete, b.Spec.HostPath.Path
			v.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "kubernetes.io/host-path"}
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "gone", UID: "gone"}
		})
		// /tmp/… is what upstream removes of a host, and this is below it by its name alone.
		c.volume(forged)
		c.no(os.MkdirAll(filepath.Join(a.Spec.HostPath.Path, "d/e"), 0o755))
		c.no(os.WriteFile(filepath.Join(a.Spec.HostPath.Path, "d/e/f"), nil, 0o600))
		for _, claim := range []string{"a", "b"} {
			c.no(api.PersistentVolumeClaims("default").Delete(c.ctx, claim, metav1.DeleteOptions{}))
		}
		c.until("the volume and its directory are gone", func() (bool, error) {
			_, err := api.PersistentVolumes().Get(c.ctx, a.Name, metav1.GetOptions{})
			_, left := os.Stat(a.Spec.HostPath.Path)
			return err != nil && os.IsNotExist(left), left
		})
		time.Sleep(time.Hour)
		v, err := api.PersistentVolumes().Get(c.ctx, b.Name, metav1.GetOptions{})
		if c.no(err); v.Status.Phase != corev1.VolumeReleased {
			t.Errorf("kept: %s", v.Status.Phase)
		}
		if left, err := os.ReadDir(directory); err != nil || len(left) != 1 || filepath.Base(b.Spec.HostPath.Path) != left[0].Name() {
			t.Errorf("left: %v, %v", left, err)
		}

		// What cannot be removed is said, and tried again.
		c.create(core+"persistentvolumeclaims", claimOfClass("c", "here"))
		time.Sleep(time.Minute)
		last := volume("c")
		c.no(os.Chmod(directory, 0o777))
		c.no(api.PersistentVolumeClaims("default").Delete(c.ctx, "c", metav1.DeleteOptions{}))
		c.reported(last.Name, "VolumeFailedDelete", directory+" is somebody else's directory")
		c.no(os.Chmod(directory, 0o750))
		time.Sleep(time.Minute)
		if _, err := os.Stat(last.Spec.HostPath.Path); !os.IsNotExist(err) {
			t.Errorf("not tried again: %v", err)
		}
	})
}
