package attachdetach

import (
	"fmt"
	"maps"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

// exclusive is upstream's word on a volume that another node has.
const exclusive = "Volume is already exclusively attached to one node and can't be attached to another"

// A going is an attachment that was deleted and is to go: since when it is tried, and when
// the attacher last said that it failed.
type going struct {
	uid           types.UID
	since, failed time.Time
}

// fails says whether this try has failed: the attacher says so, or nothing for too long.
func (g going) fails(a *storagev1.VolumeAttachment, now time.Time) bool {
	if e := a.Status.DetachError; e != nil && !e.Time.Time.Equal(g.failed) {
		return true
	}
	return now.Sub(g.since) >= attachTime
}

// retried is the try after the one that failed.
func (g going) retried(a *storagev1.VolumeAttachment, now time.Time) going {
	g.since = now
	if e := a.Status.DetachError; e != nil {
		g.failed = e.Time.Time
	}
	return g
}

// deleted are the attachments that are to go, by the name of their node.
func (v *volume) deleted() (all []*storagev1.VolumeAttachment) {
	for _, name := range slices.Sorted(maps.Keys(v.attachments)) {
		if a := v.attachments[name]; a.DeletionTimestamp != nil {
			all = append(all, a)
		}
	}
	return all
}

// unfinished is why an attachment that was deleted is still there, "" while it may go soon:
// then left is how long that may take.
func (v *volume) unfinished(a *storagev1.VolumeAttachment, now time.Time) (why string, left time.Duration) {
	if e := a.Status.DetachError; e != nil {
		return e.Message, 0
	}
	if left := attachTime - now.Sub(a.DeletionTimestamp.Time); left > 0 {
		return "", left
	}
	return fmt.Sprintf("timed out waiting for external-attacher of %s CSI driver to detach volume %s", v.driver, v.handle), 0
}

// waitForEnd tells the pods of a node, which need the volume, of deleted attachments that
// do not go: nothing comes about for them before that.
func (d *decision) waitForEnd(v *volume, m *memory, name string, now time.Time, deleted ...*storagev1.VolumeAttachment) {
	for _, a := range deleted {
		why, left := v.unfinished(a, now)
		if why == "" {
			d.later(left)
			continue
		}
		last := m.held[name]
		if last.uid == a.UID && last.message == why {
			return
		}
		m.held[name] = failure{uid: a.UID, message: why, at: now}
		what, more := "Multi-Attach error", fmt.Sprintf("%s: detaching it from node %q fails: %s", exclusive, a.Spec.NodeName, why)
		if a == v.attachments[name] {
			what, more = "AttachVolume.Attach failed", ": volume attachment is being deleted: "+why
		}
		for _, pod := range v.wanted[name] {
			d.warn = append(d.warn, warning{pod, v.message(what, more)})
		}
		return
	}
}
