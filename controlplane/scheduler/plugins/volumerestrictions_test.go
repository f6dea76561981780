package plugins

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/scheduler/framework"
)

// TestDisks: what pods of one node cannot have both, and what a pod that goes may change
// for one that waits.
func TestDisks(t *testing.T) {
	gce := func(name string, reads bool) corev1.VolumeSource {
		return corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: name, ReadOnly: reads}}
	}
	aws := func(name string, reads bool) corev1.VolumeSource {
		return corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: name, ReadOnly: reads}}
	}
	iscsi := func(iqn, portal string, reads bool) corev1.VolumeSource {
		return corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{IQN: iqn, TargetPortal: portal, ReadOnly: reads}}
	}
	rbd := func(pool string, reads bool, monitors ...string) corev1.VolumeSource {
		return corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{CephMonitors: monitors, RBDPool: pool, RBDImage: "i", ReadOnly: reads}}
	}
	for name, c := range map[string]struct {
		other, pod corev1.VolumeSource
		conflict   bool
	}{
		"GCE, both write":            {gce("a", false), gce("a", false), true},
		"GCE, one writes":            {gce("a", true), gce("a", false), true},
		"GCE, the other writes":      {gce("a", false), gce("a", true), true},
		"GCE, both read":             {gce("a", true), gce("a", true), false},
		"GCE, two disks":             {gce("a", false), gce("b", false), false},
		"AWS, both read":             {aws("a", true), aws("a", true), true},
		"AWS, two disks":             {aws("a", false), aws("b", false), false},
		"AWS and GCE":                {aws("a", false), gce("a", false), false},
		"iSCSI, both write":          {iscsi("a", "x", false), iscsi("a", "y", false), true},
		"iSCSI, both read":           {iscsi("a", "x", true), iscsi("a", "x", true), false},
		"iSCSI, two names":           {iscsi("a", "x", false), iscsi("b", "x", false), false},
		"RBD, one monitor in common": {rbd("p", false, "1", "2"), rbd("p", false, "2", "3"), true},
		"RBD, both read":             {rbd("p", true, "1"), rbd("p", true, "1"), false},
		"RBD, no monitor in common":  {rbd("p", false, "1"), rbd("p", false, "2"), false},
		"RBD, two pools":             {rbd("p", false, "1"), rbd("q", false, "1"), false},
	} {
		t.Run(name, func(t *testing.T) {
			k := framework.NewCluster()
			k.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
			pod := func(name string, source corev1.VolumeSource) *framework.Pod {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
				return k.NewPod(p)
			}
			other, p := pod("other", c.other), pod("p", c.pod)
			k.Place(other, "n")
			want := ""
			if c.conflict {
				want = "node(s) had no available disk"
			}
			if got := strings.Join(refusals(k, fixedVolumes{}, p), "; "); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			r := &VolumeRestrictions{Volumes: fixedVolumes{}, cluster: k}
			if got := r.Hint(&framework.Event{Action: framework.PodGone, Pod: other}, p); got != c.conflict {
				t.Errorf("its going helps: %v", got)
			}
			full := k.Node("n").Copy() // as preemption asks
			full.Without(other)
			if skip, _ := r.PreFilter(p); skip || r.Filter(p, full) != nil {
				t.Error("refused without the other")
			}
			full.With(other)
			if got := r.Filter(p, full) != nil; got != c.conflict {
				t.Errorf("refused with it again: %v", got)
			}
			k.Displace(other)
			if got := refusals(k, fixedVolumes{}, p); got != nil {
				t.Errorf("when the other is gone: %q", got)
			}
		})
	}
}
