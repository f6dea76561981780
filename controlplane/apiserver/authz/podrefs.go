package authz

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
)

// PodSecrets are the names of all Secrets in its namespace that a pod refers
// to, wherever a pod can name one.
func PodSecrets(pod *corev1.Pod) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, s := range pod.Spec.ImagePullSecrets {
			if s.Name != "" && !yield(s.Name) {
				return
			}
		}
		for i := range pod.Spec.Volumes {
			for _, name := range volumeSecrets(&pod.Spec.Volumes[i].VolumeSource) {
				if name != "" && !yield(name) {
					return
				}
			}
		}
		environment(pod, func(env *corev1.EnvVar, from *corev1.EnvFromSource) bool {
			switch {
			case env != nil && env.ValueFrom != nil && env.ValueFrom.SecretKeyRef != nil:
				return yield(env.ValueFrom.SecretKeyRef.Name)
			case from != nil && from.SecretRef != nil:
				return yield(from.SecretRef.Name)
			}
			return true
		})
	}
}

// PodConfigMaps is PodSecrets for ConfigMaps.
func PodConfigMaps(pod *corev1.Pod) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, v := range pod.Spec.Volumes {
			switch {
			case v.ConfigMap != nil:
				if !yield(v.ConfigMap.Name) {
					return
				}
			case v.Projected != nil:
				for _, s := range v.Projected.Sources {
					if s.ConfigMap != nil && !yield(s.ConfigMap.Name) {
						return
					}
				}
			}
		}
		environment(pod, func(env *corev1.EnvVar, from *corev1.EnvFromSource) bool {
			switch {
			case env != nil && env.ValueFrom != nil && env.ValueFrom.ConfigMapKeyRef != nil:
				return yield(env.ValueFrom.ConfigMapKeyRef.Name)
			case from != nil && from.ConfigMapRef != nil:
				return yield(from.ConfigMapRef.Name)
			}
			return true
		})
	}
}

func volumeSecrets(v *corev1.VolumeSource) []string {
	local := func(r *corev1.LocalObjectReference) []string {
		if r == nil {
			return nil
		}
		return []string{r.Name}
	}
	switch {
	case v.Secret != nil:
		return []string{v.Secret.SecretName}
	case v.Projected != nil:
		var names []string
		for _, s := range v.Projected.Sources {
			if s.Secret != nil {
				names = append(names, s.Secret.Name)
			}
		}
		return names
	case v.CSI != nil:
		return local(v.CSI.NodePublishSecretRef)
	case v.AzureFile != nil:
		return []string{v.AzureFile.SecretName}
	case v.CephFS != nil:
		return local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		return local(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		return local(v.FlexVolume.SecretRef)
	case v.RBD != nil:
		return local(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		return local(v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		return local(v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		return local(v.StorageOS.SecretRef)
	}
	return nil
}

// environment visits each variable and each source of variables of all
// containers; one of the two is nil.
func environment(pod *corev1.Pod, visit func(*corev1.EnvVar, *corev1.EnvFromSource) bool) {
	of := func(env []corev1.EnvVar, from []corev1.EnvFromSource) bool {
		for i := range env {
			if !visit(&env[i], nil) {
				return false
			}
		}
		for i := range from {
			if !visit(nil, &from[i]) {
				return false
			}
		}
		return true
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; !of(c.Env, c.EnvFrom) {
			return
		}
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; !of(c.Env, c.EnvFrom) {
			return
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if c := &pod.Spec.EphemeralContainers[i]; !of(c.Env, c.EnvFrom) {
			return
		}
	}
}

// volumeHasSecret says that a kubelet needs that Secret to mount pv.
func volumeHasSecret(pv *corev1.PersistentVolume, namespace, name string) bool {
	is := func(r *corev1.SecretReference) bool {
		if r == nil || r.Name != name {
			return false
		}
		ns := r.Namespace
		if ns == "" && pv.Spec.ClaimRef != nil {
			ns = pv.Spec.ClaimRef.Namespace
		}
		return ns == namespace
	}
	switch s := &pv.Spec.PersistentVolumeSource; {
	case s.CSI != nil:
		return is(s.CSI.NodePublishSecretRef) || is(s.CSI.NodeStageSecretRef) || is(s.CSI.NodeExpandSecretRef)
	case s.AzureFile != nil:
		r := &corev1.SecretReference{Name: s.AzureFile.SecretName}
		if s.AzureFile.SecretNamespace != nil {
			r.Namespace = *s.AzureFile.SecretNamespace
		}
		return is(r)
	case s.CephFS != nil:
		return is(s.CephFS.SecretRef)
	case s.Cinder != nil:
		return is(s.Cinder.SecretRef)
	case s.FlexVolume != nil:
		return is(s.FlexVolume.SecretRef)
	case s.RBD != nil:
		return is(s.RBD.SecretRef)
	case s.ScaleIO != nil:
		return is(s.ScaleIO.SecretRef)
	case s.ISCSI != nil:
		return is(s.ISCSI.SecretRef)
	case s.StorageOS != nil && s.StorageOS.SecretRef != nil:
		return is(&corev1.SecretReference{Name: s.StorageOS.SecretRef.Name, Namespace: s.StorageOS.SecretRef.Namespace})
	}
	return false
}
