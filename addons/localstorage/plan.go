package localstorage

import (
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"knarr/addons/localstorage/driver"
	"knarr/internal/localpath"
)

// A verdict is what a node does about a claim without a volume.
type verdict int

const (
	leave   verdict = iota // it is another node's, or not yet anybody's
	elect                  // whichever node comes first takes it
	provide                // it is this node's
)

// decide says what this node does about a claim. Pure.
func decide(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node *corev1.Node) verdict {
	asked := c.Annotations[volume.AnnStorageProvisioner]
	if asked == "" {
		asked = c.Annotations[volume.AnnBetaStorageProvisioner]
	}
	if c.Spec.VolumeName != "" || c.DeletionTimestamp != nil || class == nil || !localpath.Serves(asked) || class.Provisioner != asked {
		return leave
	}
	waits := class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	switch selected := c.Annotations[volume.AnnSelectedNode]; {
	case selected == node.Name:
		return provide
	case selected != "" || waits || !allows(class, node):
		return leave
	}
	return elect
}

// allows says whether volumes of the class may be on the node.
func allows(class *storagev1.StorageClass, node *corev1.Node) bool {
	if len(class.AllowedTopologies) == 0 {
		return true
	}
	return slices.ContainsFunc(class.AllowedTopologies, func(t corev1.TopologySelectorTerm) bool {
		for _, e := range t.MatchLabelExpressions {
			if !slices.Contains(e.Values, node.Labels[e.Key]) {
				return false
			}
		}
		return true
	})
}

// electionSpread is over how long nodes spread their attempts to take a claim that
// may be anywhere.
const electionSpread = 2 * time.Second

// electionDelay is how long after its creation this node tries to take a claim:
// another time on each node, another node first for each claim. Pure.
func electionDelay(c *corev1.PersistentVolumeClaim, node string) time.Duration {
	h := fnv.New32a()
	_, _ = io.WriteString(h, node+string(c.UID))
	return time.Duration(h.Sum32()) % electionSpread
}

// volumeName is that of the volume for a claim, as external-provisioner has it.
func volumeName(c *corev1.PersistentVolumeClaim) string { return localpath.VolumeName(c.UID) }

// unsupported is why a claim cannot be met by any node, "" if it can. Pure.
func unsupported(c *corev1.PersistentVolumeClaim) string {
	switch {
	case c.Spec.Selector != nil:
		return "claim Selector is not supported"
	case c.Spec.VolumeAttributesClassName != nil && *c.Spec.VolumeAttributesClassName != "":
		return "VolumeAttributesClass is not supported by driver " + driver.Name
	}
	for _, m := range c.Spec.AccessModes {
		if m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany {
			return fmt.Sprintf("accessModes: %s is not supported: a volume of this class is on one node; use ReadWriteOnce or ReadWriteOncePod, or another class", m)
		}
	}
	return ""
}

// modes are how a claim's access modes are called in the contract, of a driver
// that tells one pod from several.
var modes = map[corev1.PersistentVolumeAccessMode]csipb.VolumeCapability_AccessMode_Mode{
	corev1.ReadWriteOnce:    csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
	corev1.ReadWriteOncePod: csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	corev1.ReadOnlyMany:     csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
	corev1.ReadWriteMany:    csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
}

const (
	paramFSType = "csi.storage.k8s.io/fstype"
	block       = corev1.PersistentVolumeBlock
)

func isBlock(mode *corev1.PersistentVolumeMode) bool { return mode != nil && *mode == block }

// createRequest is the call for a claim's volume. Pure.
func createRequest(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, topology map[string]string) *csipb.CreateVolumeRequest {
	size := c.Spec.Resources.Requests[corev1.ResourceStorage]
	r := &csipb.CreateVolumeRequest{
		Name: volumeName(c), CapacityRange: &csipb.CapacityRange{RequiredBytes: bytesOf(size)}, Parameters: maps.Clone(class.Parameters),
		AccessibilityRequirements: &csipb.TopologyRequirement{Requisite: []*csipb.Topology{{Segments: topology}}, Preferred: []*csipb.Topology{{Segments: topology}}},
	}
	if r.Parameters == nil {
		r.Parameters = map[string]string{}
	}
	fs := r.Parameters[paramFSType]
	delete(r.Parameters, paramFSType)
	r.Parameters[driver.ParamClaim], r.Parameters[driver.ParamNamespace], r.Parameters[driver.ParamVolume] = c.Name, c.Namespace, r.Name
	for _, m := range c.Spec.AccessModes {
		one := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{Mode: modes[m]}}
		if isBlock(c.Spec.VolumeMode) {
			one.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		} else {
			one.AccessType = &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{FsType: fs, MountFlags: class.MountOptions}}
		}
		r.VolumeCapabilities = append(r.VolumeCapabilities, one)
	}
	return r
}

// volumeFor is the PersistentVolume of a volume that was made for a claim. Pure.
func volumeFor(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, v *csipb.Volume, fs string) *corev1.PersistentVolume {
	policy := corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		policy = *class.ReclaimPolicy
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volumeName(c), Annotations: map[string]string{volume.AnnDynamicallyProvisioned: class.Provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(v.CapacityBytes, resource.BinarySI)},
			AccessModes: c.Spec.AccessModes, VolumeMode: c.Spec.VolumeMode, MountOptions: class.MountOptions,
			StorageClassName: class.Name, PersistentVolumeReclaimPolicy: policy,
			ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver.Name, VolumeHandle: v.VolumeId, FSType: fs, VolumeAttributes: v.VolumeContext,
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{}},
		},
	}
	if policy == corev1.PersistentVolumeReclaimDelete {
		pv.Finalizers = []string{volume.PVDeletionProtectionFinalizer}
	}
	for _, t := range v.AccessibleTopology {
		term := corev1.NodeSelectorTerm{}
		for _, k := range slices.Sorted(maps.Keys(t.Segments)) {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{Key: k, Operator: corev1.NodeSelectorOpIn, Values: []string{t.Segments[k]}})
		}
		pv.Spec.NodeAffinity.Required.NodeSelectorTerms = append(pv.Spec.NodeAffinity.Required.NodeSelectorTerms, term)
	}
	return pv
}

// hostOf is the host name of the node that a volume of this driver is on, "" if it is
// not one. Pure.
func hostOf(v *corev1.PersistentVolume) string {
	if v.Spec.CSI == nil || v.Spec.CSI.Driver != driver.Name || v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return ""
	}
	terms := v.Spec.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || len(terms[0].MatchFields) != 0 {
		return ""
	}
	e := terms[0].MatchExpressions[0]
	if e.Key != corev1.LabelHostname || e.Operator != corev1.NodeSelectorOpIn || len(e.Values) != 1 {
		return ""
	}
	return e.Values[0]
}

// onNode says whether a volume is one of this driver's on the node. Pure.
func onNode(v *corev1.PersistentVolume, node *corev1.Node) bool {
	host := hostOf(v)
	return host != "" && host == node.Labels[corev1.LabelHostname]
}

// A release is what is done about a volume whose claim may be gone.
type release int

const (
	keep    release = iota
	remove          // the data and the object
	protect         // the object may not go before the data
	expose          // it may
)

// releasing says what is done about a volume of this node. Pure.
func releasing(v *corev1.PersistentVolume) release {
	if !localpath.Serves(v.Annotations[volume.AnnDynamicallyProvisioned]) {
		return keep
	}
	deletes := v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	protected := slices.Contains(v.Finalizers, volume.PVDeletionProtectionFinalizer)
	switch {
	case !deletes && protected:
		return expose
	case !deletes:
		return keep
	case v.Status.Phase == corev1.VolumeReleased && (v.DeletionTimestamp == nil || protected):
		return remove
	case v.DeletionTimestamp == nil && !protected && v.Status.Phase == corev1.VolumeBound:
		return protect
	}
	return keep
}

// capacityStep rounds a capacity down, to steps of at most a 64th, so that what
// changes all the time is written seldom. Pure.
func capacityStep(n int64) int64 {
	step := int64(1 << 20)
	for step < n/128 {
		step *= 2
	}
	return n / step * step
}

// hash is a name of any length as part of another name or a label.
func hash(s string) string {
	h := fnv.New64a()
	_, _ = io.WriteString(h, s)
	return strconv.FormatUint(h.Sum64(), 36)
}

// limitSentence says in an event what keeps a volume to its size. Pure.
func limitSentence(limit string) string {
	switch limit {
	case "project-quota":
		return "its size is enforced by a project quota"
	case "ext4-image":
		return "its size is enforced by an ext4 file system of its own"
	}
	return fmt.Sprintf("its size is not enforced (%s)", limit)
}

// notEnforced says in an event why nothing keeps a volume to its size, and how that
// is mended. Images is why there are none now. Pure.
func notEnforced(node string, copied bool, images error) string {
	switch {
	case copied:
		return "its source's size is not enforced either"
	case images == nil:
		return fmt.Sprintf("node %s had no project quotas, and no images, when it was made", node)
	}
	return fmt.Sprintf("node %s has no project quotas, and no images: %s (knarr check says more)", node, images)
}
