package scheduler

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/scheduler/framework"
)

// trim drops, before an object is kept, what scheduling does not look at: it
// is most of it.
func trim(obj any) (any, error) {
	if m, ok := obj.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		o.Annotations = nil
		trimContainers(o.Spec.InitContainers)
		trimContainers(o.Spec.Containers)
		o.Spec.EphemeralContainers, o.Status.EphemeralContainerStatuses = nil, nil
		o.Spec.ImagePullSecrets, o.Spec.HostAliases, o.Spec.DNSConfig = nil, nil, nil
		keep := o.Spec.Volumes[:0]
		for _, v := range o.Spec.Volumes {
			if v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.Image != nil || framework.IsNamed(&v) {
				keep = append(keep, v)
			}
		}
		o.Spec.Volumes = keep
	case *storagev1.VolumeAttachment:
		o.Annotations, o.Status = nil, storagev1.VolumeAttachmentStatus{}
	case *corev1.Service:
		o.Annotations, o.Status = nil, corev1.ServiceStatus{}
		o.Spec = corev1.ServiceSpec{Selector: o.Spec.Selector}
	case *corev1.ReplicationController:
		o.Annotations, o.Spec.Template = nil, nil
	case *appsv1.ReplicaSet:
		o.Annotations, o.Spec.Template = nil, corev1.PodTemplateSpec{}
	case *appsv1.StatefulSet:
		o.Annotations, o.Spec.Template, o.Spec.VolumeClaimTemplates = nil, corev1.PodTemplateSpec{}, nil
	}
	return obj, nil
}

func trimContainers(list []corev1.Container) {
	for i := range list {
		c := &list[i]
		list[i] = corev1.Container{
			Name: c.Name, Image: c.Image, Ports: c.Ports, Resources: c.Resources,
			ResizePolicy: c.ResizePolicy, RestartPolicy: c.RestartPolicy, RestartPolicyRules: c.RestartPolicyRules,
		}
	}
}
