package plugins

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"

	"knarr/controlplane/scheduler/framework"
)

// Volumes is storage as it will be once what was decided is written. What it
// gives is nil for what does not exist.
type Volumes interface {
	Claim(namespace, name string) *corev1.PersistentVolumeClaim
	Volume(name string) *corev1.PersistentVolume
	// VolumesOf are all volumes of a class.
	VolumesOf(class string) []*corev1.PersistentVolume
	Class(name string) *storagev1.StorageClass
	CSINode(name string) *storagev1.CSINode
	// Attachments are those of volumes to a node.
	Attachments(node string) []*storagev1.VolumeAttachment
	CSIDriver(name string) *storagev1.CSIDriver
	Capacities() []*storagev1.CSIStorageCapacity
}

// bound reports whether the claim's binding is complete.
func bound(c *corev1.PersistentVolumeClaim) bool {
	_, done := c.Annotations[volume.AnnBindCompleted]
	return c.Spec.VolumeName != "" && done
}

// delayed reports whether the claim waits for its first consumer.
func delayed(v Volumes, c *corev1.PersistentVolumeClaim) bool {
	class := v.Class(volume.GetPersistentVolumeClaimClass(c))
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// hasTopology reports whether a node is where a class provisions.
func hasTopology(terms []corev1.TopologySelectorTerm, l labels.Set) bool {
	for _, t := range terms {
		all := true
		for _, e := range t.MatchLabelExpressions {
			found := false
			for _, v := range e.Values {
				found = found || l.Has(e.Key) && l[e.Key] == v
			}
			all = all && found
		}
		if all {
			return true
		}
	}
	return len(terms) == 0
}

// notFound is the API server's message for a missing object.
func notFound(resource, name string) string {
	return resource + " " + strconv.Quote(name) + " not found"
}

// aboutClaims is the hint of plugins that look at storage.
func aboutClaims(e *framework.Event, p *framework.Pod) bool {
	const nodes = framework.NodeAdded | framework.NodeLabels
	if e.Action&(nodes|framework.PodSelf) != 0 {
		return true
	}
	if e.Action&framework.VolumeChanged == 0 {
		return false
	}
	if _, attached := e.Stored.(*storagev1.VolumeAttachment); attached {
		return false
	}
	return e.Claim == nil || names(p, e.Claim)
}

// names reports whether a pod has the claim.
func names(p *framework.Pod, c *corev1.PersistentVolumeClaim) bool {
	return c.Namespace == p.Shape.Namespace && slices.Contains(p.Claims, c.Name)
}

// claimMade reports whether the event is that a claim of the pod is there.
func claimMade(e *framework.Event, p *framework.Pod) bool {
	return e.Claim != nil && !e.Gone && e.StoredBefore == nil && names(p, e.Claim)
}
