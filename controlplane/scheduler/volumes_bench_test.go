package scheduler

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/scheduler/plugins"
)

// boundVolumes is storage where each claim has a volume of its name, and each node a
// driver that attaches a thousand.
type boundVolumes struct {
	plugins.Volumes
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	node    *storagev1.CSINode
	// attached are the attachments of each node.
	attached []*storagev1.VolumeAttachment
}

func (s *boundVolumes) Claim(_, name string) *corev1.PersistentVolumeClaim { return s.claims[name] }
func (s *boundVolumes) Volume(name string) *corev1.PersistentVolume        { return s.volumes[name] }
func (s *boundVolumes) Class(string) *storagev1.StorageClass               { return nil }
func (s *boundVolumes) CSINode(string) *storagev1.CSINode                  { return s.node }
func (s *boundVolumes) Attachments(string) []*storagev1.VolumeAttachment   { return s.attached }

// BenchmarkDecideVolumes places pods that have a volume each on 1,000 nodes where many
// such pods are.
func BenchmarkDecideVolumes(b *testing.B) {
	const nodes, perNode, more = 1000, 30, 5000
	s := &boundVolumes{claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{}}
	s.node = &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(1000))}}}}}
	pods := make([]*corev1.Pod, nodes*perNode+more)
	for i := range pods {
		name := fmt.Sprint("claim-", i)
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}}}
		c.Spec.VolumeName = name
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: name}
		s.claims[name], s.volumes[name] = c, v
		pods[i] = benchPod(i, "web", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
		})
	}
	var core *core
	n := len(pods)
	for b.Loop() {
		if n == len(pods) {
			b.StopTimer()
			core = benchCore(nodes, noSiblings{})
			core = newCore(core.cluster, plugins.Table(core.cluster, noSiblings{}, s))
			for n = range nodes * perNode {
				core.cluster.Place(core.cluster.NewPod(pods[n]), fmt.Sprint("node-", n%nodes))
			}
			n++
			b.StartTimer()
		}
		p := core.cluster.NewPod(pods[n])
		node, why := core.decide(p)
		if node == nil {
			b.Fatal(why)
		}
		core.cluster.Place(p, node.Name)
		n++
	}
}
