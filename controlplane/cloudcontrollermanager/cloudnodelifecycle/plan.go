package cloudnodelifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cloud-provider/api"
)

// An action is what is to be done about a node.
type action string

const (
	nothing action = "nothing"
	// ask asks the provider: the node is not ready.
	ask action = "ask"
	// confirm asks once more after a while: one answer that the instance is not there
	// may come of a provider that is not consistent yet.
	confirm action = "confirm"
	// remove deletes the Node.
	remove action = "remove"
	// taint marks the node as switched off, untaint takes that back.
	taint   action = "taint"
	untaint action = "untaint"
)

// An answer is what the provider says of a node's instance.
type answer struct{ exists, shutdown bool }

// first is what a node's own state asks for.
func first(node *corev1.Node) action {
	switch {
	case !ready(node):
		return ask
	case slices.ContainsFunc(node.Spec.Taints, isShutdown):
		return untaint
	}
	return nothing
}

// plan is what the provider's answer about a node that is not ready asks for; absent
// is for how long all its answers were that there is no instance.
func plan(node *corev1.Node, a answer, absent, period time.Duration) action {
	switch {
	case !a.exists && absent >= period:
		return remove
	case !a.exists:
		return confirm
	case a.shutdown && !slices.ContainsFunc(node.Spec.Taints, isShutdown):
		return taint
	}
	return nothing
}

// state is what of a node leads to a question or to a write.
type state struct {
	uid        types.UID
	ready, off bool
	providerID string
}

func matters(n *corev1.Node) state {
	return state{n.UID, ready(n), slices.ContainsFunc(n.Spec.Taints, isShutdown), n.Spec.ProviderID}
}

// sameInstance reports whether the node on the server is still the one that the
// provider was asked about, and still not ready.
func sameInstance(live, asked *corev1.Node) bool {
	return live.UID == asked.UID && live.Spec.ProviderID == asked.Spec.ProviderID && !ready(live)
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

var shutdownTaint = corev1.Taint{Key: api.TaintNodeShutdown, Effect: corev1.TaintEffectNoSchedule}

func isShutdown(t corev1.Taint) bool { return t.MatchTaint(&shutdownTaint) }

// taints are the node's, with or without that of a node which is switched off.
func taints(node *corev1.Node, off bool) []corev1.Taint {
	out := slices.DeleteFunc(slices.Clone(node.Spec.Taints), isShutdown)
	if off {
		out = append(out, shutdownTaint)
	}
	return out
}
