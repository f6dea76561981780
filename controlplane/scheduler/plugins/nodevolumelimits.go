package plugins

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"knarr/controlplane/scheduler/framework"
	"knarr/internal/csimigration"
)

// NodeVolumeLimits keeps pods off nodes that can attach no more volumes of a
// CSI driver.
type NodeVolumeLimits struct {
	Volumes
	cluster *framework.Cluster

	want []wanted
	// nodes are the volumes of nodes with a limit, by slot, as of position.
	nodes    map[int]*nodeVolumes
	position uint64
	// trial is how many more pods have a volume in the question at hand.
	trial map[attachment]int
}

// An attachment is one volume of one driver.
type attachment struct{ driver, handle string }

// A wanted attachment is of a plugin that its driver has taken over from, if
// plugin is not "": then it counts on nodes that say so.
type wanted struct {
	attachment
	plugin string
}

// nodeVolumes are the volumes of one node.
type nodeVolumes struct {
	used     map[attachment]int
	attached map[attachment]struct{}
	count    map[string]int // of both, by driver
}

var (
	_ framework.PreFilter = (*NodeVolumeLimits)(nil)
	_ framework.Filter    = (*NodeVolumeLimits)(nil)
	_ framework.Simulator = (*NodeVolumeLimits)(nil)
)

var tooManyVolumes = framework.Refuse(framework.Unschedulable, "NodeVolumeLimits", "node(s) exceed max volume count")

// Name is the plugin's.
func (*NodeVolumeLimits) Name() string { return "NodeVolumeLimits" }

// PreFilter collects the volumes that drivers attach.
func (l *NodeVolumeLimits) PreFilter(p *framework.Pod) (bool, *framework.Status) {
	l.want = l.want[:0]
	clear(l.trial)
	if !attaches(p) {
		return true, nil
	}
	l.attachments(p, func(a wanted) {
		if !slices.Contains(l.want, a) {
			l.want = append(l.want, a)
		}
	})
	return len(l.want) == 0, nil
}

// attaches says whether a pod may have volumes attached.
func attaches(p *framework.Pod) bool { return len(p.Claims)+len(p.Inline) > 0 }

// attachments calls each for what a pod has attached. A volume that is yet to
// be made is known by its claim.
func (l *NodeVolumeLimits) attachments(p *framework.Pod, each func(wanted)) {
	for _, i := range p.Inline {
		each(wanted{attachment{i.Driver, i.Handle}, i.Plugin})
	}
	for _, name := range p.Claims {
		c := l.Claim(p.Shape.Namespace, name)
		if c == nil {
			continue
		}
		if pv := l.Volume(c.Spec.VolumeName); pv != nil {
			if csi := csimigration.Source(pv); csi != nil {
				each(wanted{attachment{csi.Driver, csi.VolumeHandle}, csimigration.Plugin(pv)})
			}
		} else if class := l.Class(volume.GetPersistentVolumeClaimClass(c)); class != nil {
			a := wanted{attachment{class.Provisioner, "claim:" + c.Namespace + "/" + c.Name}, ""}
			if driver := csimigration.Driver(class.Provisioner); driver != "" {
				a.driver, a.plugin = driver, class.Provisioner
			}
			each(a)
		}
	}
}

// counts says whether a node's driver attaches the volume.
func (a wanted) counts(n *storagev1.CSINode) bool {
	return a.plugin == "" || slices.Contains(strings.Split(n.Annotations[csimigration.Annotation], ","), a.plugin)
}

// Filter compares the limits of the drivers wanted with what is there.
func (l *NodeVolumeLimits) Filter(_ *framework.Pod, n *framework.Node) *framework.Status {
	csi := l.CSINode(n.Name)
	if csi == nil {
		return nil
	}
	for i := range csi.Spec.Drivers {
		d := &csi.Spec.Drivers[i]
		if d.Allocatable == nil || d.Allocatable.Count == nil || !l.wants(d.Name) {
			continue
		}
		if l.count(d.Name, l.volumes(n, csi), csi) > int(*d.Allocatable.Count) {
			return tooManyVolumes
		}
	}
	return nil
}

func (l *NodeVolumeLimits) wants(driver string) bool {
	return slices.ContainsFunc(l.want, func(a wanted) bool { return a.driver == driver })
}

// count is how many volumes of a driver the node would have with the pod. As
// upstream has it, a volume that the pod wants and that is attached for no
// other pod counts twice: it may be on its way out.
func (l *NodeVolumeLimits) count(driver string, v *nodeVolumes, csi *storagev1.CSINode) int {
	count := v.count[driver]
	for a, delta := range l.trial {
		if a.driver != driver {
			continue
		}
		_, attached := v.attached[a]
		switch before := v.used[a]; {
		case attached:
		case before == 0 && delta > 0:
			count++
		case before > 0 && before+delta <= 0:
			count--
		}
	}
	for _, a := range l.want {
		if a.driver == driver && a.counts(csi) && v.used[a.attachment]+l.trial[a.attachment] <= 0 {
			count++
		}
	}
	return count
}

// volumes are those of a node. They are counted again when it was touched.
func (l *NodeVolumeLimits) volumes(n *framework.Node, csi *storagev1.CSINode) *nodeVolumes {
	now, known := l.cluster.Changes(l.position, func(slot int) { delete(l.nodes, slot) })
	if l.position = now; !known || l.nodes == nil {
		l.nodes = map[int]*nodeVolumes{}
	}
	v := l.nodes[n.Slot]
	if v != nil {
		return v
	}
	v = &nodeVolumes{used: map[attachment]int{}, attached: map[attachment]struct{}{}, count: map[string]int{}}
	l.nodes[n.Slot] = v
	seen := map[attachment]struct{}{}
	for _, p := range l.cluster.Nodes[n.Slot].Pods { // not those of a copy
		if !attaches(p) {
			continue
		}
		l.attachments(p, func(a wanted) {
			if a.counts(csi) {
				v.used[a.attachment]++
				seen[a.attachment] = struct{}{}
			}
		})
	}
	for _, va := range l.Attachments(n.Name) {
		name := va.Spec.Source.PersistentVolumeName
		if name == nil {
			continue
		}
		if pv := l.Volume(*name); pv != nil && pv.Spec.CSI != nil {
			a := attachment{va.Spec.Attacher, pv.Spec.CSI.VolumeHandle}
			v.attached[a], seen[a] = struct{}{}, struct{}{}
		}
	}
	for a := range seen {
		v.count[a.driver]++
	}
	return v
}

// Simulate counts a pod's volumes in or out.
func (l *NodeVolumeLimits) Simulate(_, other *framework.Pod, n *framework.Node, delta int32) {
	csi := l.CSINode(n.Name)
	if csi == nil || !attaches(other) {
		return
	}
	if l.trial == nil {
		l.trial = map[attachment]int{}
	}
	l.attachments(other, func(a wanted) {
		if !a.counts(csi) {
			return
		}
		if l.trial[a.attachment] += int(delta); l.trial[a.attachment] == 0 {
			delete(l.trial, a.attachment)
		}
	})
}

// Hint is a pod with volumes gone, a volume detached, a driver that takes more,
// the pod's claim made, or a new node.
func (*NodeVolumeLimits) Hint(e *framework.Event, p *framework.Pod) bool {
	switch o := e.Stored.(type) {
	case *storagev1.VolumeAttachment:
		return e.Gone && (len(p.Claims) > 0 || slices.ContainsFunc(p.Inline, func(i framework.InlineVolume) bool { return i.Driver == o.Spec.Attacher }))
	case *storagev1.CSINode:
		old, _ := e.StoredBefore.(*storagev1.CSINode)
		return !e.Gone && takesMore(old, o)
	case *corev1.PersistentVolumeClaim:
		return claimMade(e, p)
	}
	return e.Action&framework.NodeAdded != 0 || e.Action&framework.PodGone != 0 && e.Pod != nil && attaches(e.Pod)
}

// takesMore reports whether a node is new, or a driver's limit there grew. A
// driver without one counts as having none left, as upstream has it.
func takesMore(old, now *storagev1.CSINode) bool {
	if old == nil {
		return true
	}
	limits := func(n *storagev1.CSINode) map[string]int32 {
		m := map[string]int32{}
		for _, d := range n.Spec.Drivers {
			if d.Allocatable != nil && d.Allocatable.Count != nil {
				m[d.Name] = *d.Allocatable.Count
			}
		}
		return m
	}
	before := limits(old)
	for driver, n := range limits(now) {
		if n > before[driver] {
			return true
		}
	}
	return false
}
