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
	// Storage is what changed of storage, and how.
	Storage string
	// Claim is set when storage changed in no more than this claim.
	Claim *corev1.PersistentVolumeClaim
	// Stored is the object of storage that changed, StoredBefore what it was,
	// nil if it is new. Gone says that it was deleted.
	Stored, StoredBefore any
	Gone                 bool
}

// actionLabels are what upstream calls the actions.
var actionLabels = []struct {
	action Action
	label  string
}{
	{NodeAdded, "NodeAdd"}, {NodeAllocatable, "NodeUpdateNodeAllocatable"}, {NodeLabels, "NodeUpdateNodeLabel"},
	{NodeTaints, "NodeUpdateNodeTaint"}, {NodeUpdated, "NodeUpdate"},
	{PodPlaced, "AssignedPodAdd"}, {PodGone, "AssignedPodDelete"},
	{PodLabels, "AssignedPodUpdatePodLabel"}, {PodScaledDown, "AssignedPodUpdatePodScaleDown"},
	{PodSelf, "UnschedulablePodUpdate"}, {NamespaceLabels, "NamespaceUpdate"},
}

// Label names the event in metrics; of several changes the first counts.
func (e *Event) Label() string {
	for _, l := range actionLabels {
		if e.Action&l.action != 0 {
			return l.label
		}
	}
	return e.Storage
}
