package framework

import corev1 "k8s.io/api/core/v1"

// An Action is a set of ways in which an object changed.
type Action uint16

// What may happen to objects.
const (
	NodeAdded Action = 1 << iota
	NodeAllocatable
	NodeLabels
	NodeTaints
	NodeUpdated
	PodPlaced
	PodGone
	PodLabels
	PodScaledDown
	PodSelf // the waiting pod itself was changed
	NamespaceLabels
	VolumeChanged
)

// An Event is something that happened in the cluster.
type Event struct {
	Action Action
	// OldNode and Node are set for nodes.
	OldNode, Node *corev1.Node
	// Pod is the other pod, Old what it was before.
	Pod, Old *Pod
	// Claim is set when storage changed in no more than this claim.
	Claim *corev1.PersistentVolumeClaim
}
