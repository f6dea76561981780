package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/scheduler/framework"
)

// VolumeRestrictions keeps a ReadWriteOncePod claim to one pod.
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
			if r.cluster.ClaimUsers(c.Namespace, c.Name) > 0 {
				r.users++
			}
		}
	}
	return r.users == 0, nil
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

// Filter refuses every node while there is another user.
func (r *VolumeRestrictions) Filter(*framework.Pod, *framework.Node) *framework.Status {
	if r.users > 0 {
		return claimInUse
	}
	return nil
}

// Hint is a user gone, or a claim made.
func (r *VolumeRestrictions) Hint(e *framework.Event, p *framework.Pod) bool {
	if e.Action&framework.PodGone == 0 {
		return e.Action&framework.VolumeChanged != 0 && aboutClaims(e, p)
	}
	if e.Pod == nil || e.Pod.Shape.Namespace != p.Shape.Namespace {
		return false
	}
	return slices.ContainsFunc(p.Claims, func(name string) bool { return slices.Contains(e.Pod.Claims, name) })
}
