package plugins

import "knarr/controlplane/scheduler/framework"

// DynamicResources holds back pods with resource claims: allocating devices is
// not done yet, and without it such a pod could not start anywhere.
type DynamicResources struct{}

var _ framework.PreFilter = DynamicResources{}

var cannotAllocate = framework.Refuse(framework.Unresolvable, "DynamicResources", "allocation of resource claims is not supported")

// Name is the plugin's.
func (DynamicResources) Name() string { return "DynamicResources" }

// PreFilter looks for claims.
func (DynamicResources) PreFilter(p *framework.Pod) (bool, *framework.Status) {
	if len(p.Pod.Spec.ResourceClaims) > 0 {
		return false, cannotAllocate
	}
	return true, nil
}

// Filter never refuses.
func (DynamicResources) Filter(*framework.Pod, *framework.Node) *framework.Status { return nil }

// Hint is that nothing helps but another pod.
func (DynamicResources) Hint(*framework.Event, *framework.Pod) bool { return false }
