// Package framework is what scheduler plugins see: pods and nodes made ready
// for arithmetic, the cluster they make up, and the points at which a plugin
// is asked. It reads and writes nothing outside the process, and belongs to
// one goroutine at a time.
package framework

import (
	corev1 "k8s.io/api/core/v1"
)

// A Code says what became of a question put to a plugin.
type Code uint8

// The codes a refusal may have. Unresolvable means that no preemption helps. Success
// and Skip, of a plugin that has nothing to say, are none.
const (
	Success Code = iota
	Unschedulable
	Unresolvable
	Error
	Skip
	Codes // their number
)

// String is the code as upstream writes it.
func (c Code) String() string {
	return [Codes]string{"Success", "Unschedulable", "UnschedulableAndUnresolvable", "Error", "Skip"}[c]
}

// A Status is why a plugin refuses. A nil Status is consent.
type Status struct {
	Code    Code
	Plugin  string
	Reasons []string
}

// CodeOf is a status's code.
func CodeOf(s *Status) Code {
	if s == nil {
		return Success
	}
	return s.Code
}

// Refuse makes a status once, to be given many times.
func Refuse(code Code, plugin string, reasons ...string) *Status {
	return &Status{code, plugin, reasons}
}

// MaxScore is the best score a node may have from one plugin.
const MaxScore = 100

// A Plugin takes part at the points whose interfaces it has. A plugin may keep
// what PreFilter and PreScore worked out until the next pod's.
type Plugin interface{ Name() string }

// PreEnqueue keeps pods from being tried at all.
type PreEnqueue interface {
	PreEnqueue(pod *corev1.Pod) *Status
}

// PreFilter is asked once per pod, before Filter. With skip the plugin has
// nothing to say about any node.
type PreFilter interface {
	PreFilter(p *Pod) (skip bool, s *Status)
}

// Filter reports whether a node can take the pod.
type Filter interface {
	Filter(p *Pod, n *Node) *Status
}

// Simulator is told about pods that are added to (delta 1) or taken off (-1) a
// node for the sake of a question, after PreFilter.
type Simulator interface {
	Simulate(p, other *Pod, n *Node, delta int32)
}

// PreScore is asked once per pod, before Score. With skip all nodes are equal.
type PreScore interface {
	PreScore(p *Pod, feasible []*Node) (skip bool)
}

// Score rates a node.
type Score interface {
	Score(p *Pod, n *Node) int64
}

// Normalizer brings the scores of all feasible nodes between 0 and MaxScore.
type Normalizer interface {
	Normalize(p *Pod, feasible []*Node, scores []int64)
}

// Local is had by plugins whose Filter and Score depend on nothing but the
// pod's shape and the node: their answers are remembered.
type Local interface{ Local() }

// Room is had by filters that look at what a node's pods have taken, and so may
// change their mind when one goes.
type Room interface{ Room() }

// Hinter reports whether something that happened may make schedulable a pod that
// the plugin refused. A plugin without it is retried at any event.
type Hinter interface {
	Hint(e *Event, p *Pod) bool
}

// NormalizeTo100 scales scores so that the greatest becomes MaxScore, and
// turns them around with reverse.
func NormalizeTo100(scores []int64, reverse bool) {
	var top int64
	for _, s := range scores {
		top = max(top, s)
	}
	for i, s := range scores {
		if top > 0 {
			s = MaxScore * s / top
		}
		if reverse {
			s = MaxScore - s
		}
		scores[i] = s
	}
}
