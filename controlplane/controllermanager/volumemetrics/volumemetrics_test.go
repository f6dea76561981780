package volumemetrics

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestPlugin(t *testing.T) {
	for name, c := range map[string]struct {
		source     corev1.PersistentVolumeSource
		plugin     string
		attachable string
	}{
		"a driver's":  {corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d"}}, "kubernetes.io/csi:d", "kubernetes.io/csi:d"},
		"a host path": {corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{}}, "kubernetes.io/host-path", ""},
		"NFS":         {corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}, "kubernetes.io/nfs", ""},
		"iSCSI":       {corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{}}, "kubernetes.io/iscsi", "kubernetes.io/iscsi"},
		"a local one": {corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{}}, "N/A", ""},
		"one taken over": {corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-12345678"}},
			"N/A", "kubernetes.io/csi:ebs.csi.aws.com"},
	} {
		v := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: c.source}}
		if got := Plugin(v); got != c.plugin {
			t.Errorf("%s: %s, want %s", name, got, c.plugin)
		}
		if got, ok := Attachable(v); ok != (c.attachable != "") || ok && got != c.attachable {
			t.Errorf("%s: attachable %v %s, want %q", name, ok, got, c.attachable)
		}
	}
}
