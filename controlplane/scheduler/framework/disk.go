package framework

import (
	corev1 "k8s.io/api/core/v1"

	"knarr/internal/csimigration"
)

// An InlineVolume is one that a pod names itself, of a plugin from which a CSI
// driver has taken over.
type InlineVolume struct{ Driver, Handle, Plugin string }

// A Disk is one that a pod names itself, and that two pods of a node have only
// if both read, or not even then.
type Disk struct {
	diskName
	reads bool
}

// A diskName is a kind of volume and what it is told apart by.
type diskName struct{ kind, name string }

// diskUses are the pods of a node that have a disk.
type diskUses struct{ reading, writing int }

// IsNamed reports whether a volume that a pod names itself matters to where
// the pod may run.
func IsNamed(v *corev1.Volume) bool {
	return v.ISCSI != nil || v.RBD != nil || csimigration.InlinePlugin(v) != ""
}

// disksOf are those of a volume. An RBD image is one with each of its monitors:
// two volumes are the same if they have one in common.
func disksOf(v *corev1.Volume) []Disk {
	switch {
	case v.GCEPersistentDisk != nil:
		return []Disk{{diskName{"gce", v.GCEPersistentDisk.PDName}, v.GCEPersistentDisk.ReadOnly}}
	case v.AWSElasticBlockStore != nil: // no two pods, even if they read
		return []Disk{{diskName{"aws", v.AWSElasticBlockStore.VolumeID}, false}}
	case v.ISCSI != nil:
		return []Disk{{diskName{"iscsi", v.ISCSI.IQN}, v.ISCSI.ReadOnly}}
	case v.RBD != nil:
		var all []Disk
		for _, monitor := range v.RBD.CephMonitors {
			all = append(all, Disk{diskName{"rbd", monitor + "\n" + v.RBD.RBDPool + "\n" + v.RBD.RBDImage}, v.RBD.ReadOnly})
		}
		return all
	}
	return nil
}

func (n *Node) countDisks(disks []Disk, sign int) {
	for _, d := range disks {
		if n.disks == nil {
			n.disks = map[diskName]diskUses{}
		}
		u := n.disks[d.diskName]
		if d.reads {
			u.reading += sign
		} else {
			u.writing += sign
		}
		if n.disks[d.diskName] = u; u == (diskUses{}) {
			delete(n.disks, d.diskName)
		}
	}
}

// Conflicts reports whether a pod of the node has the disk in a way that keeps
// another from it.
func (n *Node) Conflicts(d Disk) bool {
	u := n.disks[d.diskName]
	return u.writing > 0 || !d.reads && u.reading > 0
}

// ConflictsWith reports whether two pods cannot have both disks on one node.
func (d Disk) ConflictsWith(other Disk) bool {
	return d.diskName == other.diskName && !(d.reads && other.reads)
}
