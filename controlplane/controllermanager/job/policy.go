package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// A policyMatch is what the failure policy says about one failed pod.
type policyMatch struct {
	counts     bool   // towards the backoff limit
	failsJob   string // why the whole job fails, or nothing
	failsIndex bool
	// action is that of the rule that matched, "" if none did.
	action batchv1.PodFailurePolicyAction
}

func match(policy *batchv1.PodFailurePolicy, p *corev1.Pod) policyMatch {
	if policy == nil {
		return policyMatch{counts: true}
	}
	for i := range policy.Rules {
		rule := &policy.Rules[i]
		message := ""
		if want := rule.OnExitCodes; want != nil {
			c := exited(p.Status.ContainerStatuses, want)
			if c == nil {
				c = exited(p.Status.InitContainerStatuses, want)
			}
			if c == nil {
				continue
			}
			message = fmt.Sprintf("Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d",
				c.Name, p.Namespace, p.Name, c.State.Terminated.ExitCode, rule.Action, i)
		} else {
			c := conditioned(p, rule.OnPodConditions)
			if c == "" {
				continue
			}
			message = fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d", p.Namespace, p.Name, c, rule.Action, i)
		}
		switch rule.Action {
		case batchv1.PodFailurePolicyActionIgnore:
			return policyMatch{action: rule.Action}
		case batchv1.PodFailurePolicyActionFailIndex:
			return policyMatch{counts: true, failsIndex: true, action: rule.Action}
		case batchv1.PodFailurePolicyActionCount:
			return policyMatch{counts: true, action: rule.Action}
		case batchv1.PodFailurePolicyActionFailJob:
			return policyMatch{counts: true, failsJob: message, action: rule.Action}
		}
	}
	return policyMatch{counts: true}
}

func exited(list []corev1.ContainerStatus, want *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for i := range list {
		c := &list[i]
		end := c.State.Terminated
		if end == nil || end.ExitCode == 0 || want.ContainerName != nil && *want.ContainerName != c.Name {
			continue
		}
		if slices.Contains(want.Values, end.ExitCode) == (want.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
			return c
		}
	}
	return nil
}

func conditioned(p *corev1.Pod, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) corev1.PodConditionType {
	for _, c := range p.Status.Conditions {
		for _, want := range patterns {
			if c.Type == want.Type && c.Status == want.Status {
				return c.Type
			}
		}
	}
	return ""
}

// enough says which rule of the success policy the finished indexes meet.
func enough(policy *batchv1.SuccessPolicy, done indexes, size int) string {
	if policy == nil || len(done) == 0 {
		return ""
	}
	for i, rule := range policy.Rules {
		met := false
		if rule.SucceededIndexes != nil {
			want := parseIndexes(*rule.SucceededIndexes, size)
			n := want.common(done)
			met = n > 0 && (n == want.size() || rule.SucceededCount != nil && n >= int(*rule.SucceededCount))
		} else if rule.SucceededCount != nil {
			met = done.size() >= int(*rule.SucceededCount)
		}
		if met {
			return fmt.Sprintf("Matched rules at index %d", i)
		}
	}
	return ""
}
