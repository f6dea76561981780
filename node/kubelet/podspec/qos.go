package podspec

import corev1 "k8s.io/api/core/v1"

// QOS is the quality-of-service class of a pod.
func QOS(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	return ComputeQOS(pod)
}

// ComputeQOS derives the class from the requests and limits of the containers.
func ComputeQOS(pod *corev1.Pod) corev1.PodQOSClass {
	counted := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
	if r := pod.Spec.Resources; r != nil && (len(r.Limits) > 0 || len(r.Requests) > 0) {
		guaranteed, any := true, false
		for _, name := range counted {
			req, lim := r.Requests[name], r.Limits[name]
			any = any || !req.IsZero() || !lim.IsZero()
			guaranteed = guaranteed && !lim.IsZero() && req.Cmp(lim) == 0
		}
		switch {
		case !any:
			return corev1.PodQOSBestEffort
		case guaranteed:
			return corev1.PodQOSGuaranteed
		}
		return corev1.PodQOSBurstable
	}
	guaranteed, any := true, false
	EachContainer(pod, func(c *corev1.Container, kind ContainerKind) {
		if kind == EphemeralContainer {
			return
		}
		for _, name := range counted {
			req, lim := c.Resources.Requests[name], c.Resources.Limits[name]
			any = any || !req.IsZero() || !lim.IsZero()
			if lim.IsZero() || (!req.IsZero() && req.Cmp(lim) != 0) {
				guaranteed = false
			}
		}
	})
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}
