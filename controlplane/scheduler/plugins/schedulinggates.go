package plugins

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/scheduler/framework"
)

// SchedulingGates keeps back pods that have gates.
type SchedulingGates struct{}

var _ framework.PreEnqueue = SchedulingGates{}

// Name is the plugin's.
func (SchedulingGates) Name() string { return "SchedulingGates" }

// PreEnqueue names the gates.
func (g SchedulingGates) PreEnqueue(pod *corev1.Pod) *framework.Status {
	if len(pod.Spec.SchedulingGates) == 0 {
		return nil
	}
	names := make([]string, len(pod.Spec.SchedulingGates))
	for i, gate := range pod.Spec.SchedulingGates {
		names[i] = gate.Name
	}
	return framework.Refuse(framework.Unresolvable, g.Name(), fmt.Sprintf("waiting for scheduling gates: [%s]", strings.Join(names, " ")))
}

// Hint is that only a change of the pod itself takes gates away.
func (SchedulingGates) Hint(e *framework.Event, p *framework.Pod) bool {
	return e.Action&framework.PodSelf != 0
}
