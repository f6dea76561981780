// Package csimigration says which CSI driver has taken over from a volume plugin within
// Kubernetes, and what a volume of such a plugin is to it, by upstream's own library of
// translations. It reads and writes nothing.
package csimigration

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	translation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"knarr/internal/run"
)

// Annotation is that of a CSINode which names, with commas between them, the plugins that
// drivers have taken over from on this node.
const Annotation = "storage.alpha.kubernetes.io/migrated-plugins"

// Plugins is Annotation's value: all of them, sorted, as upstream's kubelet has it.
const Plugins = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder," +
	"kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"

var translator = translation.New()

// Driver is the CSI driver that has taken over from the plugin of that name; "" if none
// has.
func Driver(plugin string) string {
	if !translator.IsMigratableIntreePluginByName(plugin) {
		return ""
	}
	driver, err := translator.GetCSINameFromInTreeName(plugin)
	if err != nil {
		return ""
	}
	return driver
}

// Plugin is that within Kubernetes which the volume is of, where a driver has taken over
// from it; else "".
func Plugin(v *corev1.PersistentVolume) string {
	if !translator.IsPVMigratable(v) {
		return ""
	}
	plugin, err := translator.GetInTreePluginNameFromSpec(v, nil)
	if err != nil {
		return ""
	}
	return plugin
}

// translate calls the library of translations, which may panic at what it did not expect
// in what users write.
func translate(what string, f func() (*corev1.PersistentVolume, error)) (as *corev1.PersistentVolume, err error) {
	err = run.Catch("translate "+what+" to CSI", func() (err error) {
		as, err = f()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("failed to translate %s to CSI: %w", what, err)
	}
	return as, nil
}

// Volume is the volume as one of the CSI driver that has taken over from its plugin; the
// same where none has. Its identifiers may be such that no driver could know it.
func Volume(v *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if v.Spec.CSI != nil || !translator.IsPVMigratable(v) {
		return v, nil
	}
	return translate("in-tree pv", func() (*corev1.PersistentVolume, error) {
		return translator.TranslateInTreePVToCSI(klog.Background(), v)
	})
}

// Source is what a CSI driver is told of the volume: its own source, or that which Volume
// gives; nil if it is no driver's.
func Source(v *corev1.PersistentVolume) *corev1.CSIPersistentVolumeSource {
	as, err := Volume(v)
	if err != nil {
		return nil
	}
	return as.Spec.CSI
}

// InlinePlugin is that within Kubernetes which a volume that a pod names itself is of,
// where a driver has taken over from it; else "".
func InlinePlugin(v *corev1.Volume) string {
	if !translator.IsInlineMigratable(v) {
		return ""
	}
	plugin, err := translator.GetInTreePluginNameFromSpec(nil, v)
	if err != nil {
		return ""
	}
	return plugin
}

// Inline is a volume that a pod of the namespace names itself, as one of the CSI driver
// that has taken over from its plugin; nil where none has. Its name is made of what the
// pod says, and is no path's.
func Inline(v *corev1.Volume, namespace string) (*corev1.PersistentVolume, error) {
	if !translator.IsInlineMigratable(v) {
		return nil, nil
	}
	policy := ""
	if vm := v.VsphereVolume; vm != nil && vm.StoragePolicyName != "" {
		// The library looks for the policy in the volume that it is about to make, and panics.
		policy = vm.StoragePolicyName
		v = v.DeepCopy()
		v.VsphereVolume.StoragePolicyName = ""
	}
	as, err := translate("in-tree inline volume", func() (*corev1.PersistentVolume, error) {
		return translator.TranslateInTreeInlineVolumeToCSI(klog.Background(), v, namespace)
	})
	if err == nil && policy != "" {
		as.Spec.CSI.VolumeAttributes["storagepolicyname"] = policy
	}
	return as, err
}
