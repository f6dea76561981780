package registry

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var podColumns = []Column[*corev1.Pod]{
	nameColumn[*corev1.Pod](),
	column("Ready", "string", "The aggregate readiness state of this pod for accepting traffic.", 0,
		func(p *corev1.Pod) any {
			s := summarize(p)
			return fmt.Sprintf("%d/%d", s.ready, s.total)
		}),
	column("Status", "string", "The aggregate status of the containers in this pod.", 0,
		func(p *corev1.Pod) any { return summarize(p).reason }),
	column("Restarts", "string", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted.", 0,
		func(p *corev1.Pod) any {
			s := summarize(p)
			if s.restarts != 0 && !s.restarted.IsZero() {
				return fmt.Sprintf("%d (%s ago)", s.restarts, age(s.restarted))
			}
			return strconv.Itoa(s.restarts)
		}),
	ageColumn[*corev1.Pod](),
	column("IP", "string", corev1.PodStatus{}.SwaggerDoc()["podIP"], 1, func(p *corev1.Pod) any {
		if len(p.Status.PodIPs) == 0 {
			return "<none>"
		}
		return orElse(p.Status.PodIPs[0].IP, "<none>")
	}),
	column("Node", "string", corev1.PodSpec{}.SwaggerDoc()["nodeName"], 1,
		func(p *corev1.Pod) any { return orElse(p.Spec.NodeName, "<none>") }),
	column("Nominated Node", "string", corev1.PodStatus{}.SwaggerDoc()["nominatedNodeName"], 1,
		func(p *corev1.Pod) any { return orElse(p.Status.NominatedNodeName, "<none>") }),
	column("Readiness Gates", "string", corev1.PodSpec{}.SwaggerDoc()["readinessGates"], 1,
		func(p *corev1.Pod) any { return readinessGates(p) }),
}

func readinessGates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return "<none>"
	}
	open := 0
	for _, gate := range p.Spec.ReadinessGates {
		if podCondition(p, gate.ConditionType) {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(p.Spec.ReadinessGates))
}

// podCondition reports whether the pod's (first) condition of a type is true.
func podCondition(p *corev1.Pod, typ corev1.PodConditionType) bool {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == typ {
			return p.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// podSummary is a pod in three cells.
type podSummary struct {
	reason       string
	ready, total int
	restarts     int
	restarted    metav1.Time
}

func (s *podSummary) count(c *corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && s.restarted.Before(&t.FinishedAt) {
		s.restarted = t.FinishedAt
	}
}

func summarize(p *corev1.Pod) podSummary {
	s := podSummary{reason: orElse(p.Status.Reason, string(p.Status.Phase)), total: len(p.Spec.Containers)}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.reason = corev1.PodReasonSchedulingGated
		}
	}
	sidecars := map[string]bool{}
	for i := range p.Spec.InitContainers {
		if isSidecar(&p.Spec.InitContainers[i]) {
			sidecars[p.Spec.InitContainers[i].Name] = true
			s.total++
		}
	}
	started, sidecarCounts := s.initialize(p, sidecars)
	if started || podCondition(p, corev1.PodInitialized) {
		s.restarts, s.restarted = sidecarCounts.restarts, sidecarCounts.restarted
		s.run(p)
	}
	switch finished := p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded; {
	case p.DeletionTimestamp != nil && p.Status.Reason == "NodeLost":
		s.reason = "Unknown"
	case p.DeletionTimestamp != nil && !finished:
		s.reason = "Terminating"
	}
	return s
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// initialize goes through the init containers until one that is not done;
// done tells that there is none. sidecarCounts are the sidecars' restarts.
func (s *podSummary) initialize(p *corev1.Pod, sidecars map[string]bool) (done bool, sidecarCounts podSummary) {
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		s.count(c)
		if sidecars[c.Name] {
			sidecarCounts.count(c)
		}
		ended := c.State.Terminated
		switch {
		case ended != nil && ended.ExitCode == 0:
			continue
		case sidecars[c.Name] && deref(c.Started, false):
			if c.Ready {
				s.ready++
			}
			continue
		case ended != nil:
			s.reason = "Init:" + endReason(ended)
		case c.State.Waiting != nil && c.State.Waiting.Reason != "" && c.State.Waiting.Reason != "PodInitializing":
			s.reason = "Init:" + c.State.Waiting.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return false, sidecarCounts
	}
	return true, sidecarCounts
}

// run goes through the containers; the first one's trouble wins.
func (s *podSummary) run(p *corev1.Pod) {
	running, failure := false, ""
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &p.Status.ContainerStatuses[i]
		s.count(c)
		switch ended := c.State.Terminated; {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.reason = c.State.Waiting.Reason
		case ended != nil:
			s.reason = endReason(ended)
			if ended.ExitCode != 0 {
				failure = s.reason
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.reason != "Completed" {
		return
	}
	switch {
	case running && podCondition(p, corev1.PodReady):
		s.reason = "Running"
	case failure != "":
		s.reason = failure
	case running:
		s.reason = "NotReady"
	}
}

func endReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}
