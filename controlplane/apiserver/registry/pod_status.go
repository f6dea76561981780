package registry

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validatePodStatusUpdate(_ context.Context, p, old *corev1.Pod) field.ErrorList {
	var f faults
	at := field.NewPath("status")
	now, was := &p.Status, &old.Status
	f.add(validatePodAnnotationUpdate(p, old, field.NewPath("metadata", "annotations")))
	for i, c := range now.Conditions {
		q := at.Child("conditions").Index(i)
		if c.ObservedGeneration < 0 {
			f.invalid(q.Child("observedGeneration"), c.ObservedGeneration, "must be a non-negative integer")
		}
		switch c.Type {
		case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized:
		default:
			f.add(qualifiedName(string(c.Type), q.Child("Type")))
		}
	}
	if n := now.NominatedNodeName; n != "" && n != was.NominatedNodeName {
		f.add(invalid(NameIsDNSSubdomain(n, false), n, at.Child("nominatedNodeName")))
		if old.Spec.NodeName != "" {
			f.forbidden(at.Child("nominatedNodeName"), "may not be set on pods that are already bound to a node")
		}
	}
	if now.ObservedGeneration < 0 {
		f.invalid(at.Child("observedGeneration"), now.ObservedGeneration, "must be a non-negative integer")
	}
	f.add(unchanged(now.QOSClass, was.QOSClass, at.Child("qosClass")))
	f.add(noResurrection(now.ContainerStatuses, was.ContainerStatuses, old.Spec.Containers, &old.Spec, at.Child("containerStatuses")))
	f.add(noResurrection(now.InitContainerStatuses, was.InitContainerStatuses, old.Spec.InitContainers, &old.Spec, at.Child("initContainerStatuses")))
	f.add(noResurrection(now.EphemeralContainerStatuses, was.EphemeralContainerStatuses, nil, nil, at.Child("ephemeralContainerStatuses")))
	f.add(validatePodAddresses(now, was, at))
	f.add(validateClaimStatuses(now, &p.Spec, at))
	for _, s := range []struct {
		name       string
		statuses   []corev1.ContainerStatus
		containers []corev1.Container
		ephemeral  bool
	}{
		{"containerStatuses", now.ContainerStatuses, p.Spec.Containers, false},
		{"initContainerStatuses", now.InitContainerStatuses, p.Spec.InitContainers, false},
		{"ephemeralContainerStatuses", now.EphemeralContainerStatuses, nil, true},
	} {
		for i := range s.statuses {
			q := at.Child(s.name).Index(i)
			f.add(validateContainerUser(s.statuses[i].User, p.Spec.OS, q.Child("user", "linux")))
			if !s.ephemeral {
				f.add(validateAllocatedStatus(&s.statuses[i], s.containers, q.Child("allocatedResourcesStatus")))
			} else if len(s.statuses[i].AllocatedResourcesStatus) > 0 {
				f.forbidden(q.Child("allocatedResourcesStatus"), "must not be specified in container status")
			}
		}
	}
	return f.list
}

// noResurrection: a container that ended for good does not run again. spec is
// nil for containers that never run twice.
func noResurrection(now, was []corev1.ContainerStatus, containers []corev1.Container, spec *corev1.PodSpec, at *field.Path) (errs field.ErrorList) {
	if spec != nil && restartsAll(spec) {
		return nil
	}
	for i, before := range was {
		if before.State.Terminated == nil {
			continue
		}
		j := slices.IndexFunc(now, func(s corev1.ContainerStatus) bool { return s.Name == before.Name })
		if j < 0 || now[j].State.Terminated != nil {
			continue
		}
		k := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == before.Name })
		if spec == nil || k < 0 || !restarts(&containers[k], spec, before.State.Terminated.ExitCode) {
			errs = append(errs, field.Forbidden(at.Index(i).Child("state"), "may not be transitioned to non-terminated state"))
		}
	}
	return errs
}

// restartsAll reports whether some container's end restarts all.
func restartsAll(s *corev1.PodSpec) (all bool) {
	eachContainer(s, nil, func(c *corev1.Container, _ place) {
		for _, r := range c.RestartPolicyRules {
			all = all || r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		}
	})
	return all
}

// restarts reports whether a container that ended with code is started again.
func restarts(c *corev1.Container, s *corev1.PodSpec, code int32) bool {
	policy := string(s.RestartPolicy)
	if c.RestartPolicy != nil {
		for _, r := range c.RestartPolicyRules {
			if r.ExitCodes == nil {
				continue
			}
			in := slices.Contains(r.ExitCodes.Values, code)
			if in == (r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
				return true
			}
		}
		policy = string(*c.RestartPolicy)
	}
	switch policy {
	case string(corev1.RestartPolicyOnFailure):
		return code != 0
	case string(corev1.RestartPolicyNever):
		return false
	}
	return true
}

func validatePodAddresses(now, was *corev1.PodStatus, at *field.Path) field.ErrorList {
	var f faults
	var before, ips []string
	for _, ip := range was.PodIPs {
		before = append(before, ip.IP)
	}
	for i, ip := range now.PodIPs {
		ips = append(ips, ip.IP)
		f.add(ipValue(ip.IP, before, at.Child("podIPs").Index(i)))
	}
	f.add(onePerFamily(ips, now.PodIPs, at.Child("podIPs")))
	if len(now.HostIPs) == 0 {
		return f.list
	}
	if now.HostIP != now.HostIPs[0].IP {
		f.invalid(at.Child("hostIPs").Index(0).Child("ip"), now.HostIPs[0].IP, "must be equal to `hostIP`")
	}
	before, ips = nil, nil
	for _, ip := range was.HostIPs {
		before = append(before, ip.IP)
	}
	for i, ip := range now.HostIPs {
		ips = append(ips, ip.IP)
		f.add(ipValue(ip.IP, before, at.Child("hostIPs").Index(i)))
	}
	f.add(onePerFamily(ips, now.HostIPs, at.Child("hostIPs")))
	return f.list
}
