package registry

import (
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var volumeAttachments = &Kind[*storagev1.VolumeAttachment]{
	GroupVersionKind: storagev1.SchemeGroupVersion.WithKind("VolumeAttachment"),
	Plural:           "volumeattachments",
	Cluster:          true,
	Conditional:      true,

	Default: func(a *storagev1.VolumeAttachment) {
		if in := a.Spec.Source.InlineVolumeSpec; in != nil {
			defaultVolumeSource(&in.PersistentVolumeSource)
			roundUp(in.Capacity)
		}
	},
	Prepare: spec(
		func(a *storagev1.VolumeAttachment) { a.Status = storagev1.VolumeAttachmentStatus{} },
		func(a, old *storagev1.VolumeAttachment) { a.Status = old.Status }, nil),
	Validate: validateVolumeAttachment,
	Columns: []Column[*storagev1.VolumeAttachment]{
		nameColumn[*storagev1.VolumeAttachment](),
		attacherColumn(),
		column("PV", "string", storagev1.VolumeAttachmentSource{}.SwaggerDoc()["persistentVolumeName"], 0,
			func(a *storagev1.VolumeAttachment) any { return deref(a.Spec.Source.PersistentVolumeName, "") }),
		column("Node", "string", storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["nodeName"], 0,
			func(a *storagev1.VolumeAttachment) any { return a.Spec.NodeName }),
		column("Attached", "boolean", storagev1.VolumeAttachmentStatus{}.SwaggerDoc()["attached"], 0,
			func(a *storagev1.VolumeAttachment) any { return a.Status.Attached }),
		ageColumn[*storagev1.VolumeAttachment](),
	},
	Sub: []Subresource[*storagev1.VolumeAttachment]{
		statusOf(func(a, old *storagev1.VolumeAttachment) {
			a.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&a.ObjectMeta, &old.ObjectMeta)
		}, validateVolumeAttachment),
	},
}

func attacherColumn() Column[*storagev1.VolumeAttachment] {
	c := column("Attacher", "string", storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["attacher"], 0,
		func(a *storagev1.VolumeAttachment) any { return a.Spec.Attacher })
	c.Format = "name" // upstream's slip, seen by clients
	return c
}
