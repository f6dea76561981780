package kubelet

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (k *Kubelet) setConditions(n *corev1.Node, now time.Time) {
	set := func(c corev1.NodeCondition) {
		c.LastHeartbeatTime = metav1.NewTime(now.Truncate(time.Second))
		c.LastTransitionTime = c.LastHeartbeatTime
		for i := range n.Status.Conditions {
			if o := &n.Status.Conditions[i]; o.Type == c.Type {
				if o.Status == c.Status {
					c.LastTransitionTime = o.LastTransitionTime
					if o.Reason == c.Reason && o.Message == c.Message && now.Sub(o.LastHeartbeatTime.Time) < k.cfg.Settings.NodeStatusReportFrequency.Duration-time.Second {
						c.LastHeartbeatTime = o.LastHeartbeatTime // unchanged
					}
				}
				*o = c
				return
			}
		}
		n.Status.Conditions = append(n.Status.Conditions, c)
	}
	p := k.pressure.Load()
	pressureCondition := func(t corev1.NodeConditionType, on bool, yes, no, yesMsg, noMsg string) {
		c := corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, Reason: no, Message: noMsg}
		if on {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, yes, yesMsg
		}
		set(c)
	}
	pressureCondition(corev1.NodeMemoryPressure, p.memory, "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory",
		"kubelet has insufficient memory available", "kubelet has sufficient memory available")
	pressureCondition(corev1.NodeDiskPressure, p.disk, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure",
		"kubelet has disk pressure", "kubelet has no disk pressure")
	pressureCondition(corev1.NodePIDPressure, p.pids, "KubeletHasInsufficientPID", "KubeletHasSufficientPID",
		"kubelet has insufficient PID available", "kubelet has sufficient PID available")
	if c, ok := staleNetwork(n.Status.Conditions, textOf(&k.staleErr)); ok {
		set(c)
	}
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	var wrong []string
	if !k.runtimeUp.Load() {
		msg := "container runtime status check may not have completed yet"
		if m := k.runtimeErr.Load(); m != nil {
			msg = *m
		}
		wrong = append(wrong, msg)
	}
	if why := k.listWrong(); why != "" {
		wrong = append(wrong, why)
	}
	if k.runtimeUp.Load() {
		if !k.network.Load() {
			wrong = append(wrong, k.networkMessage())
		}
		if why := k.networkWrong(); why != "" { // the cause, where the runtime only sees that something is missing
			wrong = append(wrong, "container runtime network not ready: "+why)
		}
	}
	if k.shuttingDown.Load() {
		wrong = append(wrong, "node is shutting down")
	}
	if len(wrong) > 0 {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "KubeletNotReady", strings.Join(wrong, ", ")
		if len(wrong) > 1 {
			ready.Message = "[" + ready.Message + "]"
		}
	}
	set(ready)
}

// Reasons of the condition NetworkUnavailable that are this node's own: a cloud's controller
// has others.
const (
	networkNotUpdated = "NetworkNotUpdated"
	networkUpdated    = "NetworkUpdated"
)

// staleNetwork is what a Node is to say of a network that is not brought up to date, or is
// again; false: nothing. Pure.
func staleNetwork(have []corev1.NodeCondition, why string) (c corev1.NodeCondition, ok bool) {
	if why != "" {
		return corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: networkNotUpdated, Message: why}, true
	}
	ours := slices.ContainsFunc(have, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && (c.Reason == networkNotUpdated || c.Reason == networkUpdated)
	})
	return corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: networkUpdated, Message: "the node's network is up to date"}, ours
}
