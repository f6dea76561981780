package plugins

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/scheduler/framework"
	"knarr/internal/csimigration"
)

// fixedVolumes is storage that stands still.
type fixedVolumes struct {
	claims     map[string]*corev1.PersistentVolumeClaim
	volumes    map[string]*corev1.PersistentVolume
	class      *storagev1.StorageClass
	csi        *storagev1.CSINode
	driver     *storagev1.CSIDriver
	capacities []*storagev1.CSIStorageCapacity
	attached   []*storagev1.VolumeAttachment
}

func (s fixedVolumes) Claim(_, name string) *corev1.PersistentVolumeClaim { return s.claims[name] }
func (s fixedVolumes) Volume(name string) *corev1.PersistentVolume        { return s.volumes[name] }
func (s fixedVolumes) VolumesOf(string) (list []*corev1.PersistentVolume) {
	for _, v := range s.volumes {
		list = append(list, v)
	}
	return list
}
func (s fixedVolumes) Class(string) *storagev1.StorageClass { return s.class }
func (s fixedVolumes) CSINode(string) *storagev1.CSINode    { return s.csi }
func (s fixedVolumes) Attachments(string) []*storagev1.VolumeAttachment {
	return s.attached
}
func (s fixedVolumes) CSIDriver(string) *storagev1.CSIDriver       { return s.driver }
func (s fixedVolumes) Capacities() []*storagev1.CSIStorageCapacity { return s.capacities }

func TestVolumePlugins(t *testing.T) {
	gigabytes := func(n string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(n + "Gi")}
	}
	claim := func(name, volume string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
		c.Spec.AccessModes, c.Spec.VolumeName = modes, volume
		c.Spec.StorageClassName = new("late")
		c.Spec.Resources.Requests = gigabytes("2")
		if volume != "" {
			c.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		}
		return c
	}
	volume := func(edit func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "v"}
		if edit != nil {
			edit(v)
		}
		return v
	}
	at := func(host string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "host", Operator: corev1.NodeSelectorOpIn, Values: []string{host}}},
			}}}}
		}
	}
	zoned := func(v *corev1.PersistentVolume) { v.Labels = map[string]string{corev1.LabelTopologyZone: "b__c"} }
	late := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "d", VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
	soon := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "d", VolumeBindingMode: new(storagev1.VolumeBindingImmediate)}
	limit := func(n int32) *storagev1.CSINode {
		return &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d", Allocatable: &storagev1.VolumeNodeResources{Count: &n}}}}}
	}
	measured := &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{StorageCapacity: new(true)}}
	has := func(n string) []*storagev1.CSIStorageCapacity {
		return []*storagev1.CSIStorageCapacity{{StorageClassName: "late", Capacity: new(resource.MustParse(n + "Gi")), NodeTopology: &metav1.LabelSelector{}}}
	}
	claims := func(c ...*corev1.PersistentVolumeClaim) map[string]*corev1.PersistentVolumeClaim {
		m := map[string]*corev1.PersistentVolumeClaim{}
		for _, c := range c {
			m[c.Name] = c
		}
		return m
	}
	one := func(v *corev1.PersistentVolume) map[string]*corev1.PersistentVolume {
		return map[string]*corev1.PersistentVolume{v.Name: v}
	}
	const rwop = corev1.ReadWriteOncePod
	for _, c := range []struct {
		name string
		s    fixedVolumes
		want string
	}{
		{"bound", fixedVolumes{claims: claims(claim("c", "v")), volumes: one(volume(nil))}, ""},
		{"no claim", fixedVolumes{}, `persistentvolumeclaim "c" not found`},
		{"reachable", fixedVolumes{claims: claims(claim("c", "v")), volumes: one(volume(at("here")))}, ""},
		{"elsewhere", fixedVolumes{claims: claims(claim("c", "v")), volumes: one(volume(at("there")))}, volumeElsewhere},
		{"volume gone", fixedVolumes{claims: claims(claim("c", "v"))}, volumeMissing},
		{"immediate", fixedVolumes{claims: claims(claim("c", "")), class: soon}, "pod has unbound immediate PersistentVolumeClaims"},
		{"to be made", fixedVolumes{claims: claims(claim("c", "")), class: late}, ""},
		{"enough storage", fixedVolumes{claims: claims(claim("c", "")), class: late, driver: measured, capacities: has("2")}, ""},
		{"storage full", fixedVolumes{claims: claims(claim("c", "")), class: late, driver: measured, capacities: has("1")}, storageFull},
		{"other zone", fixedVolumes{claims: claims(claim("c", "v")), volumes: one(volume(zoned))}, "node(s) had no available volume zone"},
		{"one more volume", fixedVolumes{claims: claims(claim("c", "v"), claim("o", "")), volumes: one(volume(nil)), class: late, csi: limit(2)}, ""},
		{"one volume too many", fixedVolumes{claims: claims(claim("c", "v"), claim("o", "")), volumes: one(volume(nil)), class: late, csi: limit(1)}, "node(s) exceed max volume count"},
		{"used by one pod", fixedVolumes{claims: claims(claim("c", "v", rwop)), volumes: one(volume(nil))}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := framework.NewCluster()
			k.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"host": "here", corev1.LabelTopologyZone: "a"}}})
			pod := func(name, claim string) *framework.Pod {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
				p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
				return k.NewPod(p)
			}
			k.Place(pod("other", "o"), "n")
			if got := strings.Join(refusals(k, c.s, pod("p", "c")), "; "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	t.Run("used by another pod", func(t *testing.T) {
		k := framework.NewCluster()
		k.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}}
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		k.Place(k.NewPod(p), "n")
		got := refusals(k, fixedVolumes{claims: claims(claim("c", "v", rwop)), volumes: one(volume(nil))}, k.NewPod(p))
		if want := claimInUse.Reasons[0]; len(got) != 1 || got[0] != want {
			t.Errorf("got %q", got)
		}
	})
}

// refusals are what the storage plugins have against the one node; the first
// that refuses beforehand ends it.
func refusals(k *framework.Cluster, s fixedVolumes, p *framework.Pod) (list []string) {
	for _, e := range Table(k, nil, s) {
		switch e.Name() {
		case "VolumeBinding", "VolumeZone", "VolumeRestrictions", "NodeVolumeLimits":
		default:
			continue
		}
		skip, st := e.Plugin.(framework.PreFilter).PreFilter(p)
		if st != nil {
			return st.Reasons
		}
		if skip {
			continue
		}
		if st := e.Plugin.(framework.Filter).Filter(p, k.Node("n")); st != nil {
			list = append(list, st.Reasons...)
		}
	}
	return list
}

// A volume of a plugin that a driver has taken over from is reached from where the driver
// says, and counts for the driver's limit, on nodes that say so.
func TestTakenOverVolumes(t *testing.T) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	pv.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-12345678"}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
	}}}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}}}
	claim.Spec.VolumeName = "v"
	claimed := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	inline := corev1.VolumeSource{AWSElasticBlockStore: pv.Spec.AWSElasticBlockStore}
	const full = "node(s) exceed max volume count"
	for name, c := range map[string]struct {
		source   corev1.VolumeSource
		migrated bool
		zone     string // the label of the driver
		limit    int32
		want     string
	}{
		"reached":                   {claimed, true, "a", 1, ""},
		"not reached by the driver": {claimed, true, "b", 1, volumeElsewhere},
		"no driver has taken over":  {claimed, false, "b", 1, ""},
		"too many":                  {claimed, true, "a", 0, full},
		"a pod's own":               {inline, true, "a", 1, ""},
		"a pod's own, too many":     {inline, true, "a", 0, full},
		"not the driver's here":     {inline, false, "a", 0, ""},
		"nor a claim's":             {claimed, false, "a", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			k := framework.NewCluster()
			k.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "a", "topology.ebs.csi.aws.com/zone": c.zone}}})
			csi := &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "ebs.csi.aws.com", Allocatable: &storagev1.VolumeNodeResources{Count: &c.limit}}}}}
			if c.migrated {
				csi.Annotations = map[string]string{csimigration.Annotation: csimigration.Plugins}
			}
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}}
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: c.source}}
			s := fixedVolumes{claims: map[string]*corev1.PersistentVolumeClaim{"c": claim}, volumes: map[string]*corev1.PersistentVolume{"v": pv}, csi: csi}
			if got := strings.Join(refusals(k, s, k.NewPod(p)), "; "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
