package plugins

import (
	"cmp"

	"k8s.io/component-helpers/storage/volume"

	"knarr/controlplane/scheduler/framework"
	"knarr/internal/csimigration"
)

// NodeVolumeLimits keeps pods off nodes that can attach no more volumes of a
// CSI driver.
type NodeVolumeLimits struct {
	Volumes

	want map[attachment]struct{}
}

// An attachment is one volume of one driver.
type attachment struct{ driver, handle string }

var (
	_ framework.PreFilter = (*NodeVolumeLimits)(nil)
	_ framework.Filter    = (*NodeVolumeLimits)(nil)
)

var tooManyVolumes = framework.Refuse(framework.Unschedulable, "NodeVolumeLimits", "node(s) exceed max volume count")

// Room marks that pods going make a difference.
func (*NodeVolumeLimits) Room() {}

// Name is the plugin's.
func (*NodeVolumeLimits) Name() string { return "NodeVolumeLimits" }

// PreFilter collects the volumes that drivers attach.
func (l *NodeVolumeLimits) PreFilter(p *framework.Pod) (bool, *framework.Status) {
	if !attaches(p) {
		return true, nil
	}
	l.want = map[attachment]struct{}{}
	l.attachments(p, l.want)
	return len(l.want) == 0, nil
}

// attaches says whether a pod may have volumes attached.
func attaches(p *framework.Pod) bool { return len(p.Claims)+len(p.Inline) > 0 }

// attachments adds what a pod has attached. A volume that is yet to be made is
// known by its claim.
func (l *NodeVolumeLimits) attachments(p *framework.Pod, to map[attachment]struct{}) {
	for _, csi := range p.Inline {
		to[attachment{csi.Driver, csi.VolumeHandle}] = struct{}{}
	}
	for _, name := range p.Claims {
		c := l.Claim(p.Shape.Namespace, name)
		if c == nil {
			continue
		}
		if c.Spec.VolumeName != "" {
			if pv := l.Volume(c.Spec.VolumeName); pv != nil {
				if csi := csimigration.Source(pv); csi != nil {
					to[attachment{csi.Driver, csi.VolumeHandle}] = struct{}{}
				}
				continue
			}
		}
		if class := l.Class(volume.GetPersistentVolumeClaimClass(c)); class != nil {
			to[attachment{cmp.Or(csimigration.Driver(class.Provisioner), class.Provisioner), "claim:" + c.Namespace + "/" + c.Name}] = struct{}{}
		}
	}
}

// Filter counts what the node's pods have attached, where there is a limit.
func (l *NodeVolumeLimits) Filter(_ *framework.Pod, n *framework.Node) *framework.Status {
	csi := l.CSINode(n.Name)
	if csi == nil {
		return nil
	}
	var has map[attachment]struct{}
	for _, d := range csi.Spec.Drivers {
		if d.Allocatable == nil || d.Allocatable.Count == nil || !l.wants(d.Name) {
			continue
		}
		if has == nil {
			has = map[attachment]struct{}{}
			for _, o := range n.Pods {
				if attaches(o) {
					l.attachments(o, has)
				}
			}
			for a := range l.want {
				has[a] = struct{}{}
			}
		}
		count := 0
		for a := range has {
			if a.driver == d.Name {
				count++
			}
		}
		if count > int(*d.Allocatable.Count) {
			return tooManyVolumes
		}
	}
	return nil
}

func (l *NodeVolumeLimits) wants(driver string) bool {
	for a := range l.want {
		if a.driver == driver {
			return true
		}
	}
	return false
}

// Hint is a pod with volumes gone, or a change of storage or nodes.
func (*NodeVolumeLimits) Hint(e *framework.Event, p *framework.Pod) bool {
	if e.Action&framework.PodGone != 0 {
		return e.Pod != nil && attaches(e.Pod)
	}
	return aboutClaims(e, p)
}
