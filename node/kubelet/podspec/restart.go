package podspec

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ReasonRestartingAll is why a container ended, or waits, that was removed because all
// containers of its pod begin anew.
const ReasonRestartingAll = "RestartingAllContainers"

// RestartsOn says whether a container is started again after that exit code.
func RestartsOn(pod *corev1.Pod, c *corev1.Container, code int32) bool {
	if c.RestartPolicy != nil {
		if ruleFor(c, code) != nil { // each of them restarts, that container or all
			return true
		}
		switch *c.RestartPolicy {
		case corev1.ContainerRestartPolicyAlways:
			return true
		case corev1.ContainerRestartPolicyOnFailure:
			return code != 0
		default:
			return false
		}
	}
	switch pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return true
}

// RestartsAllOn says whether all containers of the pod begin anew after that exit code
// of one of them.
func RestartsAllOn(c *corev1.Container, code int32) bool {
	r := ruleFor(c, code)
	return r != nil && r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// MayRestartAll says whether a pod has a container after whose end all may begin anew.
func MayRestartAll(pod *corev1.Pod) bool {
	may := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	}
	return slices.ContainsFunc(pod.Spec.InitContainers, may) || slices.ContainsFunc(pod.Spec.Containers, may)
}

// ruleFor is the first rule of a container that is about that exit code, or nil.
func ruleFor(c *corev1.Container, code int32) *corev1.ContainerRestartRule {
	for i, r := range c.RestartPolicyRules {
		if r.ExitCodes == nil {
			continue
		}
		in := slices.Contains(r.ExitCodes.Values, code)
		if in == (r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			return &c.RestartPolicyRules[i]
		}
	}
	return nil
}

// RestartsOnResize says whether a container begins anew when it is given another amount.
func RestartsOnResize(c *corev1.Container, name corev1.ResourceName) bool {
	return slices.ContainsFunc(c.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.ResourceName == name && p.RestartPolicy == corev1.RestartContainer
	})
}
