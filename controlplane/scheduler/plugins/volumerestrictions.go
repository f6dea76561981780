package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/scheduler/framework"
)

// VolumeRestrictions keeps a ReadWriteOncePod claim to one pod, and disks that
// pods name themselves to one pod of a node, or to those that read.
type VolumeRestrictions struct {
	Volumes
	cluster *framework.Cluster

	exclusive []string
	users     int
}

var (
	_ framework.PreFilter = (*VolumeRestrictions)(nil)
	_ framework.Filter    = (*VolumeRestrictions)(nil)
	_ framework.Simulator = (*VolumeRestrictions)(nil)
)

var diskInUse = framework.Refuse(framework.Unschedulable, "VolumeRestrictions", "node(s) had no available disk")

var claimInUse = framework.Refuse(framework.Unschedulable, "VolumeRestrictions", "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")

// Name is the plugin's.
func (*VolumeRestrictions) Name() string { return "VolumeRestrictions" }

// PreFilter counts the other users of exclusive claims.
func (r *VolumeRestrictions) PreFilter(p *framework.Pod) (bool, *framework.Status) {
	r.exclusive, r.users = r.exclusive[:0], 0
	for i := range p.Pod.Spec.Volumes {
		pvc := p.Pod.Spec.Volumes[i].PersistentVolumeClaim
		if pvc == nil {
			continue
		}
		c := r.Claim(p.Shape.Namespace, pvc.ClaimName)
		if c == nil {
			return false, framework.Refuse(framework.Unresolvable, r.Name(), notFound("persistentvolumeclaim", pvc.ClaimName))
		}
		if slices.Contains(c.Spec.AccessModes, corev1.ReadWriteOncePod) {
			r.exclusive = append(r.exclusive, c.Name)
			if r.cluster.ClaimInUse(c.Namespace, c.Name) {
				r.users++
			}
		}
	}
	return r.users == 0 && len(p.Disks) == 0, nil
}

// Simulate counts a user in or out.
func (r *VolumeRestrictions) Simulate(p, other *framework.Pod, _ *framework.Node, delta int32) {
	if other.Shape.Namespace != p.Shape.Namespace {
		return
	}
	for _, name := range other.Claims {
		if slices.Contains(r.exclusive, name) {
			r.users += int(delta)
		}
	}
}

// Filter refuses nodes where a pod has a disk, and every node while there is
// another user of a claim.
func (r *VolumeRestrictions) Filter(p *framework.Pod, n *framework.Node) *framework.Status {
	if slices.ContainsFunc(p.Disks, n.Conflicts) {
		return diskInUse
	}
	if r.users > 0 {
		return claimInUse
	}
	return nil
}

// Hint is a pod with such a disk or claim gone, a claim made, or a new node.
func (r *VolumeRestrictions) Hint(e *framework.Event, p *framework.Pod) bool {
	if e.Action&framework.PodGone == 0 {
		return e.Action&framework.NodeAdded != 0 || claimMade(e, p)
	}
	if e.Pod == nil {
		return false
	}
	for _, d := range p.Disks {
		if slices.ContainsFunc(e.Pod.Disks, d.ConflictsWith) {
			return true
		}
	}
	return e.Pod.Shape.Namespace == p.Shape.Namespace &&
		slices.ContainsFunc(p.Claims, func(name string) bool { return slices.Contains(e.Pod.Claims, name) })
}
