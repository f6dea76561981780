package attachdetach

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/controllermanager/volumemetrics"
)

const (
	// maxWait is how long a volume may stay mounted on a node that is not healthy
	// before it is detached without the node's word.
	maxWait = 6 * time.Minute
	// turnTime is how long a node whose pods have the volume keeps it after its driver
	// wants no attaching any more: its kubelet may be mounting it as before.
	turnTime = time.Minute
	// attachTime is how long an external attacher may take, either way, before an event
	// says so.
	attachTime = 2 * time.Minute
)

// A volume is one volume in the whole cluster, with everything that its
// attachments depend on.
type volume struct {
	name           corev1.UniqueVolumeName
	driver, handle string
	// pv is the name of the PersistentVolume; "" if it is gone.
	pv string
	// inline is the volume as pods say that name it themselves; nil if none does.
	inline *corev1.PersistentVolume
	// multi says that several nodes may have it at once.
	multi bool
	// wanted are the pods that need it, by node.
	wanted map[string][]*corev1.Pod
	// mounting are the nodes with pods that have it without any attaching.
	mounting map[string]bool
	// attachments are those there are, by node, also those being deleted.
	attachments map[string]*storagev1.VolumeAttachment
	// nodes are those in wanted and attachments.
	nodes map[string]node
	// migrated says that its driver has taken over from a plugin within Kubernetes.
	migrated bool
	// patient says that time alone takes it from no node that has it mounted.
	patient bool
}

// A node is what one Node says of itself and of the volume.
type node struct {
	exists, ready, outOfService bool
	// foreign is a node that attaches by itself.
	foreign bool
	// inUse says that the volume is mounted, or may be.
	inUse bool
	// reported says that the Node's status names the volume as attached, so that
	// its kubelet may mount it.
	reported bool
}

// A memory is what is remembered of a volume between two looks at it. Without it
// events are repeated and waits begin again.
type memory struct {
	// unwanted is since when no pod of a node needs the volume that it has.
	unwanted map[string]time.Time
	// refused are the nodes whose pods were told that another node has the volume.
	refused map[string]bool
	// failed are the last failures that pods were told of, by node.
	failed map[string]failure
	// held are the attachments that should be gone and are not, as pods were told that
	// wait for that, by the pods' node.
	held map[string]failure
	// attaching are the nodes that the volume is being attached to, since when, detaching
	// those that it is being taken from: how long it takes is counted.
	attaching map[string]time.Time
	detaching map[string]going
}

// A failure is that of one attachment that pods were told of: when the attacher
// failed, or when it was told that it takes long.
type failure struct {
	uid     types.UID
	message string
	at      time.Time
}

func newMemory() *memory {
	return &memory{unwanted: map[string]time.Time{}, refused: map[string]bool{}, failed: map[string]failure{},
		held: map[string]failure{}, attaching: map[string]time.Time{}, detaching: map[string]going{}}
}

// empty says that nothing is remembered.
func (m *memory) empty() bool {
	return len(m.unwanted)+len(m.refused)+len(m.failed)+len(m.held)+len(m.attaching)+len(m.detaching) == 0
}

// A decision is what is to be done about a volume.
type decision struct {
	attach []string     // nodes that need an attachment
	detach []detachment // attachments to be deleted
	report []string     // nodes whose status does not say what it should
	warn   []warning
	done   []outcome     // operations that have ended
	again  time.Duration // when to look again without any event; 0: never
}

type detachment struct {
	node string
	uid  types.UID
	// force is why the node is not asked, "" if it is.
	force string
}

// A warning is an event of one pod: FailedAttachVolume.
type warning struct {
	pod     *corev1.Pod
	message string
}

// Why a node loses a volume without being asked, as upstream counts it.
const (
	forTimeout      = "timeout"
	forOutOfService = "out-of-service"
)

// released says whether a node that has the volume is to lose it, and, with force,
// why without being asked. again is when the answer changes by time alone.
func released(v *volume, name string, unwanted, now time.Time) (yes bool, force string, again time.Duration) {
	n := v.nodes[name]
	if len(v.wanted[name]) > 0 {
		return false, "", 0
	}
	elapsed := now.Sub(unwanted)
	switch {
	case elapsed > maxWait && !n.ready && !v.patient:
		return true, forTimeout, 0
	case n.outOfService:
		return true, forOutOfService, 0
	case v.mounting[name] && elapsed < turnTime:
		return false, "", turnTime - elapsed
	case !n.inUse:
		return true, "", 0
	case n.ready || v.patient:
		return false, "", 0 // the Node will say when it has unmounted it
	}
	return false, "", maxWait - elapsed + time.Millisecond
}

// reports says whether the Node's status is to name the volume as attached.
func reports(v *volume, name string, unwanted, now time.Time) bool {
	a := v.attachments[name]
	if a == nil || !a.Status.Attached || a.DeletionTimestamp != nil {
		return false
	}
	yes, _, _ := released(v, name, unwanted, now)
	return !yes
}

// plan says what is to be done about a volume.
func plan(v *volume, m *memory, now time.Time) (d decision) {
	d.forget(v, m)
	d.settle(v, m, now)
	for _, name := range slices.Sorted(maps.Keys(v.attachments)) {
		d.release(v, m, name, now)
	}
	for _, name := range order(v.wanted) {
		d.want(v, m, name, now)
	}
	return d
}

// forget drops what is remembered of nodes that have nothing to do with the volume.
func (d *decision) forget(v *volume, m *memory) {
	maps.DeleteFunc(m.unwanted, func(name string, _ time.Time) bool {
		return v.attachments[name] == nil || len(v.wanted[name]) > 0
	})
	maps.DeleteFunc(m.refused, func(name string, _ bool) bool { return len(v.wanted[name]) == 0 })
	maps.DeleteFunc(m.failed, func(name string, f failure) bool {
		a := v.attachments[name]
		return a == nil || a.UID != f.uid || a.Status.Attached
	})
	maps.DeleteFunc(m.held, func(name string, f failure) bool {
		return len(v.wanted[name]) == 0 || !slices.ContainsFunc(v.deleted(), func(a *storagev1.VolumeAttachment) bool { return a.UID == f.uid })
	})
}

// release looks at a node that has the volume: the Node's status is made true
// first, so that no kubelet mounts what is about to go.
func (d *decision) release(v *volume, m *memory, name string, now time.Time) {
	a, n := v.attachments[name], v.nodes[name]
	if n.foreign {
		return
	}
	if len(v.wanted[name]) == 0 && m.unwanted[name].IsZero() {
		m.unwanted[name] = now
	}
	yes, force, again := released(v, name, m.unwanted[name], now)
	if n.exists && n.reported != reports(v, name, m.unwanted[name], now) {
		d.report = append(d.report, name)
		return
	}
	switch {
	case a.DeletionTimestamp != nil:
	case yes:
		d.detach = append(d.detach, detachment{name, a.UID, force})
	case again > 0:
		d.later(again)
	}
}

func (d *decision) later(after time.Duration) {
	if d.again == 0 || after < d.again {
		d.again = after
	}
}

// want looks at a node whose pods need the volume.
func (d *decision) want(v *volume, m *memory, name string, now time.Time) {
	if a := v.attachments[name]; a != nil {
		switch {
		case a.DeletionTimestamp != nil: // it is made anew when it is gone
			d.waitForEnd(v, m, name, now, a)
		case !a.Status.Attached:
			d.wait(v, m, name, a, now)
		}
		return
	}
	if v.multi || len(v.attachments) == 0 && len(d.attach) == 0 {
		d.attach = append(d.attach, name)
		return
	}
	if len(d.attach) > 0 {
		return
	}
	if deleted := v.deleted(); len(deleted) == len(v.attachments) {
		d.waitForEnd(v, m, name, now, deleted...)
		return
	}
	if m.refused[name] {
		return
	}
	m.refused[name] = true
	for _, pod := range v.wanted[name] {
		d.warn = append(d.warn, warning{pod, v.message("Multi-Attach error", refusal(v, pod))})
	}
}

// wait tells pods of an attachment that does not come about.
func (d *decision) wait(v *volume, m *memory, name string, a *storagev1.VolumeAttachment, now time.Time) {
	reported := m.failed[name]
	f := failure{uid: a.UID, at: now}
	switch e := a.Status.AttachError; {
	case e != nil:
		f.message, f.at = e.Message, e.Time.Time
		if reported == f {
			return
		}
	default:
		since := a.CreationTimestamp.Time
		if reported.at.After(since) {
			since = reported.at
		}
		if left := attachTime - now.Sub(since); left > 0 {
			d.later(left)
			return
		}
		f.message = fmt.Sprintf("timed out waiting for external-attacher of %s CSI driver to attach volume %s", v.driver, v.handle)
		d.later(attachTime)
	}
	m.failed[name] = f
	if since := m.attaching[name]; !since.IsZero() {
		d.done = append(d.done, outcome{name: volumemetrics.Attach, took: now.Sub(since), failed: true})
		m.attaching[name] = now // the attacher tries again
	}
	for _, pod := range v.wanted[name] {
		d.warn = append(d.warn, warning{pod, v.message("AttachVolume.Attach failed", ": "+f.message)})
	}
}

// order gives the node whose pod came first the volume that only one can have.
func order(wanted map[string][]*corev1.Pod) []string {
	first := func(name string) time.Time {
		return slices.MinFunc(wanted[name], func(a, b *corev1.Pod) int {
			return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
		}).CreationTimestamp.Time
	}
	return slices.SortedFunc(maps.Keys(wanted), func(a, b string) int {
		return cmp.Or(first(a).Compare(first(b)), cmp.Compare(a, b))
	})
}

// message is one of upstream's about a volume.
func (v *volume) message(what, more string) string {
	name := v.pv
	if name == "" && v.inline != nil {
		name = v.inline.Name
	}
	return fmt.Sprintf("%s for volume %q %s", what, name, more)
}

// refusal says to a pod who has the volume. Pods of other namespaces are counted,
// not named.
func refusal(v *volume, pod *corev1.Pod) string {
	var names []string
	others := 0
	for _, name := range slices.Sorted(maps.Keys(v.attachments)) {
		for _, o := range v.wanted[name] {
			if o.Namespace == pod.Namespace {
				names = append(names, o.Name)
			} else {
				others++
			}
		}
	}
	switch {
	case len(names) == 0 && others == 0:
		return exclusive
	case len(names) == 0:
		return fmt.Sprintf("Volume is already used by %d pod(s) in different namespaces", others)
	case others == 0:
		return "Volume is already used by pod(s) " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("Volume is already used by pod(s) %s and %d pod(s) in different namespaces", strings.Join(names, ", "), others)
}
