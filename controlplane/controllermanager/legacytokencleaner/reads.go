package legacytokencleaner

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// reads says that a pod names a Secret anywhere.
func reads(p *corev1.Pod, name string) bool {
	local := func(r *corev1.LocalObjectReference) bool { return r != nil && r.Name == name }
	return slices.ContainsFunc(p.Spec.ImagePullSecrets, func(r corev1.LocalObjectReference) bool { return r.Name == name }) ||
		containers(p, func(env []corev1.EnvVar, from []corev1.EnvFromSource) bool {
			return slices.ContainsFunc(env, func(e corev1.EnvVar) bool {
				return e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && e.ValueFrom.SecretKeyRef.Name == name
			}) || slices.ContainsFunc(from, func(e corev1.EnvFromSource) bool { return e.SecretRef != nil && e.SecretRef.Name == name })
		}) ||
		slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			switch {
			case v.Secret != nil:
				return v.Secret.SecretName == name
			case v.Projected != nil:
				return slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.Secret != nil && s.Secret.Name == name })
			case v.AzureFile != nil:
				return v.AzureFile.SecretName == name
			case v.CephFS != nil:
				return local(v.CephFS.SecretRef)
			case v.Cinder != nil:
				return local(v.Cinder.SecretRef)
			case v.CSI != nil:
				return local(v.CSI.NodePublishSecretRef)
			case v.FlexVolume != nil:
				return local(v.FlexVolume.SecretRef)
			case v.ISCSI != nil:
				return local(v.ISCSI.SecretRef)
			case v.RBD != nil:
				return local(v.RBD.SecretRef)
			case v.ScaleIO != nil:
				return local(v.ScaleIO.SecretRef)
			case v.StorageOS != nil:
				return local(v.StorageOS.SecretRef)
			}
			return false
		})
}

func containers(p *corev1.Pod, is func([]corev1.EnvVar, []corev1.EnvFromSource) bool) bool {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if is(c.Env, c.EnvFrom) {
			return true
		}
	}
	return slices.ContainsFunc(p.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return is(c.Env, c.EnvFrom) })
}
