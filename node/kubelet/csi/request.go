package csi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"knarr/node/kubelet/volume"
)

// A request is a volume taken apart.
type request struct {
	driver, handle, fsType string
	pv                     string
	context                map[string]string
	attributes             map[string]string
	options                []string
	stageSecret, pubSecret *corev1.SecretReference
	expandSecret           *corev1.SecretReference
	modes                  []corev1.PersistentVolumeAccessMode
	readOnly, ephemeral    bool
	block, migrated        bool
}

func parse(pod *corev1.Pod, s volume.Spec) (r request, err error) {
	switch {
	case s.Inline != nil:
		sum := sha256.Sum256([]byte(pod.Namespace + string(pod.UID) + s.Name))
		r = request{driver: s.Inline.Driver, handle: fmt.Sprintf("csi-%x", sum), attributes: s.Inline.VolumeAttributes, readOnly: s.ReadOnly, ephemeral: true,
			modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}
		if s.Inline.FSType != nil {
			r.fsType = *s.Inline.FSType
		}
		if ref := s.Inline.NodePublishSecretRef; ref != nil {
			r.pubSecret = &corev1.SecretReference{Namespace: pod.Namespace, Name: ref.Name}
		}
	case s.PV != nil && s.PV.Spec.CSI != nil:
		c := s.PV.Spec.CSI
		r = request{pv: s.PV.Name, driver: c.Driver, handle: c.VolumeHandle, fsType: c.FSType, attributes: c.VolumeAttributes, options: s.PV.Spec.MountOptions,
			stageSecret: c.NodeStageSecretRef, pubSecret: c.NodePublishSecretRef, expandSecret: c.NodeExpandSecretRef, modes: s.PV.Spec.AccessModes, readOnly: s.ReadOnly, block: s.Block, migrated: s.Migrated}
	default:
		return r, errors.New("not a CSI volume")
	}
	return r, nil
}

// lifecycle is whether the volume ends with its pod.
func (r request) lifecycle() storagev1.VolumeLifecycleMode {
	if r.ephemeral {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}

// permits checks that the driver says it serves volumes of this kind. One of
// which nobody has said anything serves persistent ones.
func permits(r request, about *storagev1.CSIDriver) error {
	mode, modes := r.lifecycle(), about.Spec.VolumeLifecycleModes
	switch {
	case about.Name == "" && mode == storagev1.VolumeLifecyclePersistent:
		return nil
	case about.Name == "":
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", mode, r.driver)
	case slices.Contains(modes, mode):
		return nil
	}
	return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", mode, r.driver, modes)
}

// ownable says whether the pod's group may be given the volume's files.
func ownable(r request, about *storagev1.CSIDriver) bool {
	p := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if about.Spec.FSGroupPolicy != nil {
		p = *about.Spec.FSGroupPolicy
	}
	switch p {
	case storagev1.NoneFSGroupPolicy:
		return false
	case storagev1.FileFSGroupPolicy:
		return true
	}
	return r.fsType != "" && (slices.Contains(r.modes, corev1.ReadWriteOnce) || slices.Contains(r.modes, corev1.ReadWriteOncePod))
}

func attachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// accessMode is the first of a volume's modes in the words of CSI. Drivers that
// know several writers on one node are told whether there is one.
func accessMode(modes []corev1.PersistentVolumeAccessMode, writers bool) csipb.VolumeCapability_AccessMode_Mode {
	mode := corev1.ReadWriteOnce
	if len(modes) > 0 {
		mode = modes[0]
	}
	switch {
	case mode == corev1.ReadWriteMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case mode == corev1.ReadOnlyMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == corev1.ReadWriteOncePod && writers:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case writers:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// capabilityOf is how a volume is used: as a block device, or as a file system
// that the driver gives to a group if there is one.
func capabilityOf(r request, d *driver, group string) *csipb.VolumeCapability {
	c := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{Mode: accessMode(r.modes, d.writers)}}
	if r.block {
		c.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		return c
	}
	c.AccessType = &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{FsType: r.fsType, MountFlags: r.options, VolumeMountGroup: group}}
	return c
}
