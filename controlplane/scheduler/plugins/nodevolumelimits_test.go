package plugins

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/scheduler/framework"
)

// claimed makes a pod with that claim; of a boundVolume the volume has its name.
func claimed(k *framework.Cluster, name, claim string) *framework.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	return k.NewPod(p)
}

func boundVolume(name string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}}}
	c.Spec.VolumeName = name
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: name}
	return c, v
}

// csiNode is a node whose driver d attaches as many.
func csiNode(limits ...int32) *storagev1.CSINode {
	o := &storagev1.CSINode{}
	for _, n := range limits {
		o.Spec.Drivers = append(o.Spec.Drivers, storagev1.CSINodeDriver{Name: "d", Allocatable: &storagev1.VolumeNodeResources{Count: &n}})
	}
	return o
}

// TestAttachments: what is attached to a node counts as what its pods have does, once.
func TestAttachments(t *testing.T) {
	const full = "node(s) exceed max volume count"
	for name, c := range map[string]struct {
		volumes  string // those that exist
		attached string
		limit    int32
		want     string
	}{
		"none":                          {"mine other", "", 2, ""},
		"for no pod":                    {"mine other left", "left", 2, full},
		"for no pod, and there is room": {"mine other left", "left", 3, ""},
		"for the pod that is there":     {"mine other", "other", 2, ""},
		"for a pod like this that was":  {"mine other", "mine", 2, full},
		"its volume is gone":            {"mine other", "left", 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			k := framework.NewCluster()
			k.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			s := fixedVolumes{claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{}, csi: csiNode(c.limit)}
			for name := range strings.FieldsSeq(c.volumes) {
				s.claims[name], s.volumes[name] = boundVolume(name)
			}
			inline := storagev1.VolumeAttachmentSpec{Attacher: "d", Source: storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{}}}
			s.attached = []*storagev1.VolumeAttachment{{Spec: inline}}
			if c.attached != "" {
				s.attached = append(s.attached, &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{Attacher: "d", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &c.attached}}})
			}
			k.Place(claimed(k, "other", "other"), "n")
			if got := strings.Join(refusals(k, s, claimed(k, "p", "mine")), "; "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestVolumeHints(t *testing.T) {
	k := framework.NewCluster()
	with, without := claimed(k, "with", "mine"), k.NewPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "without", Namespace: "default"}})
	disk := k.NewPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{VolumeSource: corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-12345678"}}},
	}}})
	detached := func(attacher string) *framework.Event {
		return &framework.Event{Action: framework.VolumeChanged, Gone: true, Stored: &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{Attacher: attacher}}}
	}
	drivers := func(old, now *storagev1.CSINode) *framework.Event {
		e := &framework.Event{Action: framework.VolumeChanged, Stored: now}
		if old != nil {
			e.StoredBefore = old
		}
		return e
	}
	claim := func(namespace, name string, before any) *framework.Event {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		return &framework.Event{Action: framework.VolumeChanged, Claim: c, Stored: c, StoredBefore: before}
	}
	gone := func(p *framework.Pod) *framework.Event {
		return &framework.Event{Action: framework.PodGone, Pod: p}
	}
	added := &framework.Event{Action: framework.NodeAdded}
	limits, restrictions := &NodeVolumeLimits{}, &VolumeRestrictions{}
	for _, x := range []struct {
		name   string
		plugin framework.Hinter
		event  *framework.Event
		pod    *framework.Pod
		want   bool
	}{
		{"binding: one detached", &VolumeBinding{}, detached("d"), with, false},
		{"limits: one detached", limits, detached("d"), with, true},
		{"limits: one detached, of the pod's driver", limits, detached("ebs.csi.aws.com"), disk, true},
		{"limits: one detached, of another", limits, detached("d"), disk, false},
		{"limits: one detached, of no matter", limits, detached("d"), without, false},
		{"limits: drivers of a new node", limits, drivers(nil, csiNode()), with, true},
		{"limits: a driver takes more", limits, drivers(csiNode(1), csiNode(2)), with, true},
		{"limits: a driver comes", limits, drivers(csiNode(), csiNode(1)), with, true},
		{"limits: a driver takes less", limits, drivers(csiNode(2), csiNode(1)), with, false},
		{"limits: its claim is made", limits, claim("default", "mine", nil), with, true},
		{"limits: its claim changes", limits, claim("default", "mine", &corev1.PersistentVolumeClaim{}), with, false},
		{"limits: a pod with volumes goes", limits, gone(with), with, true},
		{"limits: one without goes", limits, gone(without), with, false},
		{"limits: labels", limits, &framework.Event{Action: framework.NodeLabels}, with, false},
		{"limits: a node", limits, added, with, true},
		{"restrictions: its claim is made", restrictions, claim("default", "mine", nil), with, true},
		{"restrictions: another's is", restrictions, claim("other", "mine", nil), with, false},
		{"restrictions: one with its claim goes", restrictions, gone(with), with, true},
		{"restrictions: one without goes", restrictions, gone(without), with, false},
		{"restrictions: a node", restrictions, added, with, true},
	} {
		if got := x.plugin.Hint(x.event, x.pod); got != x.want {
			t.Errorf("%s: %v", x.name, got)
		}
	}
}
