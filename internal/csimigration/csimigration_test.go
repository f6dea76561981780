package csimigration

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlugins(t *testing.T) {
	for plugin := range strings.SplitSeq(Plugins, ",") {
		if Driver(plugin) == "" {
			t.Errorf("no driver for %s", plugin)
		}
	}
	if got := Driver("kubernetes.io/host-path"); got != "" {
		t.Errorf("a driver for host paths: %s", got)
	}
}

func TestVolume(t *testing.T) {
	for name, c := range map[string]struct {
		source                 corev1.PersistentVolumeSource
		plugin, driver, handle string
	}{
		"a driver's":    {corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "h"}}, "", "d.example.com", "h"},
		"a host path":   {corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{}}, "", "", ""},
		"block store":   {corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://a/vol-12345678"}}, "kubernetes.io/aws-ebs", "ebs.csi.aws.com", "vol-12345678"},
		"no identifier": {corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://a/../etc"}}, "kubernetes.io/aws-ebs", "", ""},
		"a file share":  {corev1.PersistentVolumeSource{AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "s", ShareName: "h"}}, "kubernetes.io/azure-file", "file.csi.azure.com", "#s#h#v#default"},
		"a vSphere one": {corev1.PersistentVolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[d] a.vmdk"}}, "kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com", "[d] a.vmdk"},
	} {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: c.source, ClaimRef: &corev1.ObjectReference{Namespace: "default"}}}
		if got := Plugin(v); got != c.plugin {
			t.Errorf("%s: of plugin %q, want %q", name, got, c.plugin)
		}
		driver, handle := "", ""
		if s := Source(v); s != nil {
			driver, handle = s.Driver, s.VolumeHandle
		}
		if driver != c.driver || handle != c.handle {
			t.Errorf("%s: driver %q, handle %q; want %q, %q", name, driver, handle, c.driver, c.handle)
		}
	}
}

func TestInline(t *testing.T) {
	disk := func(id string) *corev1.Volume {
		return &corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}}}
	}
	got, err := Inline(disk("vol-12345678"), "default")
	if err != nil || got.Spec.CSI.VolumeHandle != "vol-12345678" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := Inline(disk("aws://a/b/c"), "default"); err == nil || got != nil {
		t.Errorf("an identifier that is none: %v", got)
	}
	if got, err := Inline(&corev1.Volume{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, "default"); got != nil || err != nil {
		t.Errorf("an empty directory: %v, %v", got, err)
	}
}

// TestInlinePolicy: a pod that names a storage policy of vSphere, at which upstream's
// library of translations panics, has its volume as any other.
func TestInlinePolicy(t *testing.T) {
	v := &corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[d] a.vmdk", StoragePolicyName: "gold"}}}
	got, err := Inline(v, "default")
	if err != nil || got.Spec.CSI.VolumeAttributes["storagepolicyname"] != "gold" {
		t.Errorf("%v, %v", got, err)
	}
	if v.VsphereVolume.StoragePolicyName != "gold" {
		t.Error("the pod's own volume was changed")
	}
	if got, err := translate("volume", func() (*corev1.PersistentVolume, error) { panic("no such field") }); got != nil || err == nil {
		t.Errorf("a panic gives %v, %v", got, err)
	}
}
