package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var persistentVolumes = &Kind[*corev1.PersistentVolume]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("PersistentVolume"),
	Plural:           "persistentvolumes",
	RecheckName:      true,
	Short:            []string{"pv"},
	Cluster:          true,

	Default: func(v *corev1.PersistentVolume) {
		fill(&v.Status.Phase, corev1.VolumePending)
		fill(&v.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
		fillPtr(&v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
		defaultVolumeSource(&v.Spec.PersistentVolumeSource)
		roundUp(v.Spec.Capacity)
	},
	Prepare: func(_ context.Context, v, old *corev1.PersistentVolume) {
		if old != nil {
			v.Status = old.Status
			return
		}
		v.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: new(metav1.Now())}
	},
	Validate: validatePersistentVolume,
	Columns: []Column[*corev1.PersistentVolume]{
		nameColumn[*corev1.PersistentVolume](),
		column("Capacity", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["capacity"], 0, func(v *corev1.PersistentVolume) any {
			q := v.Spec.Capacity[corev1.ResourceStorage]
			return q.String()
		}),
		column("Access Modes", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["accessModes"], 0,
			func(v *corev1.PersistentVolume) any { return accessModes(v.Spec.AccessModes) }),
		column("Reclaim Policy", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["persistentVolumeReclaimPolicy"], 0,
			func(v *corev1.PersistentVolume) any { return string(v.Spec.PersistentVolumeReclaimPolicy) }),
		column("Status", "string", corev1.PersistentVolumeStatus{}.SwaggerDoc()["phase"], 0, func(v *corev1.PersistentVolume) any {
			if v.DeletionTimestamp != nil {
				return "Terminating"
			}
			return string(v.Status.Phase)
		}),
		column("Claim", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["claimRef"], 0, func(v *corev1.PersistentVolume) any {
			if v.Spec.ClaimRef == nil {
				return ""
			}
			return v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name
		}),
		column("StorageClass", "string", "StorageClass of the pv", 0, func(v *corev1.PersistentVolume) any {
			return orElse(v.Annotations[corev1.BetaStorageClassAnnotation], v.Spec.StorageClassName)
		}),
		column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pv", 0,
			func(v *corev1.PersistentVolume) any { return deref(v.Spec.VolumeAttributesClassName, "<unset>") }),
		column("Reason", "string", corev1.PersistentVolumeStatus{}.SwaggerDoc()["reason"], 0,
			func(v *corev1.PersistentVolume) any { return v.Status.Reason }),
		ageColumn[*corev1.PersistentVolume](),
		column("VolumeMode", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["volumeMode"], 1,
			func(v *corev1.PersistentVolume) any { return string(deref(v.Spec.VolumeMode, "<unset>")) }),
	},
	Sub: []Subresource[*corev1.PersistentVolume]{
		statusOf(func(v, old *corev1.PersistentVolume) {
			v.Spec = old.Spec
			now, was := &v.Status, &old.Status
			switch {
			case now.Phase == was.Phase && now.LastPhaseTransitionTime == nil:
				now.LastPhaseTransitionTime = was.LastPhaseTransitionTime
			case now.Phase != was.Phase && (now.LastPhaseTransitionTime == nil || now.LastPhaseTransitionTime.Equal(was.LastPhaseTransitionTime)):
				now.LastPhaseTransitionTime = new(metav1.Now())
			}
		}, nil),
	},
}

func defaultVolumeSource(s *corev1.PersistentVolumeSource) {
	if s.HostPath != nil {
		fillPtr(&s.HostPath.Type, corev1.HostPathUnset)
	}
	if s.ISCSI != nil {
		fill(&s.ISCSI.ISCSIInterface, "default")
	}
	if s.RBD != nil {
		defaultRBD(&s.RBD.RBDPool, &s.RBD.RadosUser, &s.RBD.Keyring)
	}
	if s.AzureDisk != nil {
		defaultAzureDisk(s.AzureDisk)
	}
	if s.ScaleIO != nil {
		defaultScaleIO(&s.ScaleIO.StorageMode, &s.ScaleIO.FSType)
	}
}
