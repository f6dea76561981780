package plugins

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/component-helpers/storage/volume"

	"knarr/controlplane/scheduler/framework"
	"knarr/internal/csimigration"
)

// VolumeBinding keeps pods to nodes from which their volumes can be reached,
// and finds or has provisioned the volumes of claims that wait for a consumer.
type VolumeBinding struct {
	Volumes

	reach   []reach // from where the bound volumes are reached
	missing bool    // a bound volume does not exist
	open    []*corev1.PersistentVolumeClaim
	offers  map[string][]*corev1.PersistentVolume // by class
}

// A VolumePlan is what has to be written before the pod can be bound.
type VolumePlan struct {
	Static    []StaticBinding
	Provision []*corev1.PersistentVolumeClaim
}

// A StaticBinding gives a volume that exists to a claim.
type StaticBinding struct {
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
}

var (
	_ framework.PreFilter = (*VolumeBinding)(nil)
	_ framework.Filter    = (*VolumeBinding)(nil)
)

const volumeBinding = "VolumeBinding"

// What VolumeBinding may say, one or several at once.
const (
	volumeElsewhere = "node(s) didn't match PersistentVolume's node affinity"
	noVolumeToBind  = "node(s) didn't find available persistent volumes to bind"
	storageFull     = "node(s) did not have enough free storage"
	volumeMissing   = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
)

// Name is the plugin's.
func (*VolumeBinding) Name() string { return volumeBinding }

// Hint is a change of storage or nodes.
func (*VolumeBinding) Hint(e *framework.Event, p *framework.Pod) bool { return aboutClaims(e, p) }

// PreFilter sorts the pod's claims.
func (b *VolumeBinding) PreFilter(p *framework.Pod) (bool, *framework.Status) {
	if len(p.Claims) == 0 {
		return true, nil
	}
	refuse := func(format string, args ...any) (bool, *framework.Status) {
		return false, framework.Refuse(framework.Unresolvable, volumeBinding, fmt.Sprintf(format, args...))
	}
	b.reach, b.open, b.missing = b.reach[:0], b.open[:0], false
	var claims []*corev1.PersistentVolumeClaim
	for i := range p.Pod.Spec.Volumes {
		v := &p.Pod.Spec.Volumes[i]
		name := framework.ClaimName(p.Pod, v)
		if name == "" {
			continue
		}
		c := b.Claim(p.Shape.Namespace, name)
		switch {
		case c == nil && v.Ephemeral != nil:
			return refuse("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
		case c == nil:
			return refuse("%s", notFound("persistentvolumeclaim", name))
		case c.Status.Phase == corev1.ClaimLost:
			return refuse("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, c.Spec.VolumeName)
		case c.DeletionTimestamp != nil:
			return refuse("persistentvolumeclaim %q is being deleted", name)
		case v.Ephemeral != nil && !metav1.IsControlledBy(c, p.Pod):
			return refuse("PVC %s/%s was not created for pod %s/%s (pod is not owner)", c.Namespace, c.Name, p.Pod.Namespace, p.Pod.Name)
		}
		claims = append(claims, c)
	}
	for _, c := range claims {
		switch {
		case bound(c):
			pv := b.Volume(c.Spec.VolumeName)
			if pv == nil {
				b.missing = true
				continue
			}
			from, err := reachOf(pv)
			if err != nil {
				return refuse("volume %s: %v", pv.Name, err)
			}
			b.reach = append(b.reach, from)
		case c.Spec.VolumeName == "" && delayed(b.Volumes, c):
			b.open = append(b.open, c)
		default:
			return refuse("pod has unbound immediate PersistentVolumeClaims")
		}
	}
	// Small claims first, so that large volumes are left for large claims.
	slices.SortStableFunc(b.open, func(x, y *corev1.PersistentVolumeClaim) int {
		a := x.Spec.Resources.Requests[corev1.ResourceStorage]
		return a.Cmp(y.Spec.Resources.Requests[corev1.ResourceStorage])
	})
	b.offers = map[string][]*corev1.PersistentVolume{}
	for _, c := range b.open {
		class := volume.GetPersistentVolumeClaimClass(c)
		b.offers[class] = b.VolumesOf(class)
	}
	return false, nil
}

// A reach is from which nodes a volume can be reached, nil if from all. Where a driver has
// taken over from its plugin, nodes have other labels: the driver's.
type reach struct {
	own, driver *nodeaffinity.NodeSelector
	plugin      string // that a driver has taken over from; "" if none has
}

func reachOf(pv *corev1.PersistentVolume) (r reach, err error) {
	if r.own, err = selector(pv); err != nil {
		return r, err
	}
	if r.plugin = csimigration.Plugin(pv); r.plugin == "" {
		return r, nil
	}
	if pv, err = csimigration.Volume(pv); err != nil {
		return r, err
	}
	r.driver, err = selector(pv)
	return r, err
}

func selector(pv *corev1.PersistentVolume) (*nodeaffinity.NodeSelector, error) {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil, nil
	}
	return nodeaffinity.NewNodeSelector(pv.Spec.NodeAffinity.Required)
}

// matches says whether a node reaches the volume; csi is what it says of its drivers, nil
// if nothing.
func (r reach) matches(n *corev1.Node, csi *storagev1.CSINode) bool {
	sel := r.own
	if r.plugin != "" && csi != nil && slices.Contains(strings.Split(csi.Annotations[csimigration.Annotation], ","), r.plugin) {
		sel = r.driver
	}
	return sel == nil || sel.Match(n)
}

// Filter tries to plan.
func (b *VolumeBinding) Filter(_ *framework.Pod, n *framework.Node) *framework.Status {
	var reasons []string
	if b.missing {
		reasons = append(reasons, volumeMissing)
	}
	here := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: n.Object.Labels}}
	for _, from := range b.reach {
		if !from.matches(here, b.CSINode(n.Name)) {
			reasons = append([]string{volumeElsewhere}, reasons...)
			break
		}
	}
	if len(b.open) > 0 {
		if _, why := b.plan(n); why != "" {
			reasons = append(reasons, why)
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return framework.Refuse(framework.Unresolvable, volumeBinding, reasons...)
}

// Plan is what to write for the pod last filtered, when it goes to that node.
func (b *VolumeBinding) Plan(p *framework.Pod, n *framework.Node) *VolumePlan {
	if len(p.Claims) == 0 || len(b.open) == 0 {
		return nil
	}
	plan, why := b.plan(n)
	if why != "" {
		return nil
	}
	return plan
}

func (b *VolumeBinding) plan(n *framework.Node) (*VolumePlan, string) {
	plan := &VolumePlan{}
	chosen := map[string]*corev1.PersistentVolume{}
	for _, c := range b.open {
		if at, ok := c.Annotations[volume.AnnSelectedNode]; ok {
			if at != n.Name {
				return nil, noVolumeToBind
			}
		} else {
			pv, err := volume.FindMatchingVolume(c, b.offers[volume.GetPersistentVolumeClaimClass(c)], n.Object, chosen, true, true)
			if err == nil && pv != nil {
				chosen[pv.Name] = pv
				plan.Static = append(plan.Static, StaticBinding{pv, c})
				continue
			}
		}
		if why := b.provisionable(c, n); why != "" {
			return nil, why
		}
		plan.Provision = append(plan.Provision, c)
	}
	return plan, ""
}

// provisionable says why a volume for the claim cannot be made at the node.
func (b *VolumeBinding) provisionable(c *corev1.PersistentVolumeClaim, n *framework.Node) string {
	class := b.Class(volume.GetPersistentVolumeClaimClass(c))
	if class == nil || class.Provisioner == "" || class.Provisioner == volume.NotSupportedProvisioner {
		return noVolumeToBind
	}
	if !hasTopology(class.AllowedTopologies, n.Object.Labels) {
		return noVolumeToBind
	}
	size, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]
	driver := b.CSIDriver(class.Provisioner)
	if !ok || driver == nil || driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity {
		return ""
	}
	for _, has := range b.Capacities() {
		if has.StorageClassName != class.Name || has.NodeTopology == nil {
			continue
		}
		most := has.MaximumVolumeSize
		if most == nil {
			most = has.Capacity
		}
		sel, err := metav1.LabelSelectorAsSelector(has.NodeTopology)
		if err == nil && most != nil && most.Cmp(size) >= 0 && sel.Matches(labels.Set(n.Object.Labels)) {
			return ""
		}
	}
	return storageFull
}
