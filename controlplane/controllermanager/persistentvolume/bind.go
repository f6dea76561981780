package persistentvolume

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

// preResizeCapacity is the size that a volume had before it was made larger.
const preResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"

// bind is the next step towards the two being bound. The volume comes first: it
// can name only one claim.
func bind(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) step {
	changed, dirty, err := volume.GetBindVolumeToClaim(v, c)
	switch {
	case err != nil:
		return step{err: fmt.Errorf("bind volume %s: %w", v.Name, err)}
	case dirty:
		return step{volume: changed}
	case v.Status.Phase != corev1.VolumeBound:
		return step{volume: withPhase(v, corev1.VolumeBound, ""), status: true}
	}
	if changed := withVolume(c, v.Name); changed != nil {
		return step{claim: changed}
	}
	bound, err := withStatus(c, corev1.ClaimBound, v)
	return step{claim: bound, status: true, last: true, err: err}
}

// withVolume is the claim with the volume's name and the mark of a completed
// binding, nil if it has both.
func withVolume(c *corev1.PersistentVolumeClaim, name string) *corev1.PersistentVolumeClaim {
	if c.Spec.VolumeName == name && bindCompleted(c) {
		return nil
	}
	changed := c.DeepCopy()
	if c.Spec.VolumeName != name {
		changed.Spec.VolumeName = name
		if !metav1.HasAnnotation(c.ObjectMeta, volume.AnnBoundByController) {
			metav1.SetMetaDataAnnotation(&changed.ObjectMeta, volume.AnnBoundByController, "yes")
		}
	}
	if !bindCompleted(c) {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, volume.AnnBindCompleted, "yes")
	}
	return changed
}

// withPhase is the volume in that phase.
func withPhase(v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string) *corev1.PersistentVolume {
	v = v.DeepCopy()
	v.Status.Phase, v.Status.Message = phase, message
	return v
}

// withStatus is the claim in that phase, with what it has of the volume, nil if
// it is so already.
func withStatus(c *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase, v *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, error) {
	changed := c.DeepCopy()
	status := &changed.Status
	status.Phase = phase
	dirty := c.Status.Phase != phase
	if v == nil {
		dirty = dirty || c.Status.AccessModes != nil || c.Status.Capacity != nil || c.Status.CurrentVolumeAttributesClassName != nil
		status.AccessModes, status.Capacity, status.CurrentVolumeAttributesClassName = nil, nil, nil
	} else {
		if !slices.Equal(c.Status.AccessModes, v.Spec.AccessModes) {
			status.AccessModes = slices.Clone(v.Spec.AccessModes)
			dirty = true
		}
		// Once the claim is bound its capacity and class are the resizer's: the file
		// system may be smaller than the volume.
		if c.Status.Phase != phase {
			size, ok := v.Spec.Capacity[corev1.ResourceStorage]
			if !ok {
				return nil, fmt.Errorf("PersistentVolume %q is without a storage capacity", v.Name)
			}
			if before, ok := v.Annotations[preResizeCapacity]; ok {
				quantity, err := resource.ParseQuantity(before)
				if err != nil {
					quantity = size
				}
				if status.Capacity == nil {
					status.Capacity = corev1.ResourceList{}
				}
				status.Capacity[corev1.ResourceStorage] = quantity
			} else if have, ok := c.Status.Capacity[corev1.ResourceStorage]; !ok || size.Cmp(have) != 0 {
				status.Capacity = maps.Clone(v.Spec.Capacity)
			}
		}
		if c.Status.Phase == corev1.ClaimPending && phase == corev1.ClaimBound {
			status.CurrentVolumeAttributesClassName = v.Spec.VolumeAttributesClassName
		}
	}
	if !dirty {
		return nil, nil
	}
	return changed, nil
}
