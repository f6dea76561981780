package podstatus

import corev1 "k8s.io/api/core/v1"

// mountStatuses are the volume mounts as the status shows them; recursive says whether the
// runtime can mount read-only what is mounted below a volume too.
func mountStatuses(spec *corev1.Container, recursive func() bool) (out []corev1.VolumeMountStatus) {
	for _, m := range spec.VolumeMounts {
		vs := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := corev1.RecursiveReadOnlyDisabled
			if r := m.RecursiveReadOnly; r != nil && (*r == corev1.RecursiveReadOnlyEnabled || *r == corev1.RecursiveReadOnlyIfPossible && recursive()) {
				mode = corev1.RecursiveReadOnlyEnabled
			}
			vs.RecursiveReadOnly = &mode
		}
		out = append(out, vs)
	}
	return out
}
