package plugins

import "knarr/controlplane/scheduler/framework"

// PrioritySort puts more important pods first, then those that waited longer.
type PrioritySort struct{}

// Name is the plugin's.
func (PrioritySort) Name() string { return "PrioritySort" }

// Less reports whether a goes before b, given when each began to wait.
func (PrioritySort) Less(a, b *framework.Pod, aSince, bSince int64) bool {
	if a.Shape.Priority != b.Shape.Priority {
		return a.Shape.Priority > b.Shape.Priority
	}
	return aSince < bSince
}
