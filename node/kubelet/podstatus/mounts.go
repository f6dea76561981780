package podstatus

import corev1 "k8s.io/api/core/v1"

// mountStatuses are the volume mounts as the status shows them.
func mountStatuses(spec *corev1.Container) (out []corev1.VolumeMountStatus) {
	for _, m := range spec.VolumeMounts {
		vs := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := corev1.RecursiveReadOnlyDisabled
			if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled {
				mode = corev1.RecursiveReadOnlyEnabled
			}
			vs.RecursiveReadOnly = &mode
		}
		out = append(out, vs)
	}
	return out
}
