package scheduler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/scheduler/plugins"
)

// TestPreemptVolumes: where a node attaches no more, as many less important pods go as
// make room, and none for one whose volume stays attached.
func TestPreemptVolumes(t *testing.T) {
	s := &boundVolumes{claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{}}
	s.node = &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(2))}}}}}
	core := benchCore(1, noSiblings{})
	core = newCore(core.cluster, plugins.Table(core.cluster, noSiblings{}, s))
	pod := func(i int, claim string, priority int32) *corev1.Pod {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim, Namespace: "default", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}}}
		c.Spec.VolumeName = claim
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim}}
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: claim}
		s.claims[claim], s.volumes[claim] = c, v
		return benchPod(i, "web", func(p *corev1.Pod) {
			p.Spec.Priority = &priority
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
		})
	}
	// Two volumes, one of which two pods have.
	for i, claim := range []string{"a", "b", "b"} {
		core.cluster.Place(core.cluster.NewPod(pod(i, claim, int32(3-i))), "node-0")
	}
	p := core.cluster.NewPod(pod(9, "c", 10))
	preempt := func() (names []string) {
		node, why := core.decide(p)
		if node != nil {
			t.Fatal("there was room")
		}
		c, not := core.preempt(p, why, nil)
		if c == nil {
			return []string{not}
		}
		for _, v := range c.victims {
			names = append(names, v.Pod.Name)
		}
		return names
	}
	if got := preempt(); len(got) != 2 || got[0] != "pod-1" || got[1] != "pod-2" {
		t.Errorf("go: %q", got)
	}
	s.attached = []*storagev1.VolumeAttachment{}
	for _, name := range []string{"a", "b"} {
		s.attached = append(s.attached, &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{Attacher: "d", NodeName: "node-0", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}}})
	}
	core.cluster.Touch(core.cluster.Node("node-0"))
	if got := preempt(); len(got) != 1 || got[0] != "0/1 nodes are available: 1 node(s) exceed max volume count." {
		t.Errorf("with both attached go: %q", got)
	}
}
