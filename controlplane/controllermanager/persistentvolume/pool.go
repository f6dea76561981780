package persistentvolume

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
)

// A group is what a volume and a claim must have in common.
type group struct {
	class, attributes string
	mode              corev1.PersistentVolumeMode
}

// accessModes is a set of them.
type accessModes uint8

func accessModesOf(all []corev1.PersistentVolumeAccessMode) (set accessModes) {
	for _, m := range all {
		i := slices.Index([]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod}, m)
		if i < 0 {
			i = 7 // the API server stores no other
		}
		set |= 1 << i
	}
	return set
}

func (s accessModes) has(all accessModes) bool { return s&all == all }

// A pool has the volumes that are known, those that no claim has in the order of
// their size, and the claims that found none in the order of their requests. So
// neither a claim that looks for a volume nor a volume that became free goes
// through all of the other; only a selector is compared one by one.
type pool struct {
	volumes map[string]*corev1.PersistentVolume
	free    map[group]map[accessModes][]*corev1.PersistentVolume
	// claimed are the volumes that name a claim, by the claim.
	claimed map[cache.ObjectName]map[string]*corev1.PersistentVolume
	idle    map[group][]*corev1.PersistentVolumeClaim
	waiting map[cache.ObjectName]*corev1.PersistentVolumeClaim
}

func newPool() *pool {
	return &pool{
		volumes: map[string]*corev1.PersistentVolume{},
		free:    map[group]map[accessModes][]*corev1.PersistentVolume{},
		claimed: map[cache.ObjectName]map[string]*corev1.PersistentVolume{},
		idle:    map[group][]*corev1.PersistentVolumeClaim{},
		waiting: map[cache.ObjectName]*corev1.PersistentVolumeClaim{},
	}
}

func deref[T any](p *T, none T) T {
	if p == nil {
		return none
	}
	return *p
}

func groupOfVolume(v *corev1.PersistentVolume) group {
	return group{volume.GetPersistentVolumeClass(v), deref(v.Spec.VolumeAttributesClassName, ""), deref(v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)}
}

func groupOfClaim(c *corev1.PersistentVolumeClaim) group {
	return group{volume.GetPersistentVolumeClaimClass(c), deref(c.Spec.VolumeAttributesClassName, ""), deref(c.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)}
}

func claimKey(ref *corev1.ObjectReference) cache.ObjectName {
	return cache.ObjectName{Namespace: ref.Namespace, Name: ref.Name}
}

// available says that any claim may take the volume.
func available(v *corev1.PersistentVolume) bool {
	return v.Spec.ClaimRef == nil && v.Status.Phase == corev1.VolumeAvailable && v.DeletionTimestamp == nil
}

func bySize(a, b *corev1.PersistentVolume) int {
	x, y := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
	return cmp.Or(x.Cmp(y), strings.Compare(a.Name, b.Name))
}

func byRequest(a, b *corev1.PersistentVolumeClaim) int {
	x, y := a.Spec.Resources.Requests[corev1.ResourceStorage], b.Spec.Resources.Requests[corev1.ResourceStorage]
	return cmp.Or(x.Cmp(y), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// newer says that a is not older than b.
func newer(a, b metav1.Object) bool {
	n, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return a.GetUID() != b.GetUID() || err != nil || n >= 0
}

// set puts the volume in, if it is not older than what is known.
func (p *pool) set(v *corev1.PersistentVolume) {
	if old := p.volumes[v.Name]; old != nil && !newer(v, old) {
		return
	}
	p.remove(v.Name)
	p.volumes[v.Name] = v
	if available(v) {
		g, modes := groupOfVolume(v), accessModesOf(v.Spec.AccessModes)
		if p.free[g] == nil {
			p.free[g] = map[accessModes][]*corev1.PersistentVolume{}
		}
		p.free[g][modes] = insert(p.free[g][modes], v, bySize)
	}
	if ref := v.Spec.ClaimRef; ref != nil {
		key := claimKey(ref)
		if p.claimed[key] == nil {
			p.claimed[key] = map[string]*corev1.PersistentVolume{}
		}
		p.claimed[key][v.Name] = v
	}
}

// remove takes the volume out.
func (p *pool) remove(name string) {
	v := p.volumes[name]
	if v == nil {
		return
	}
	delete(p.volumes, name)
	if available(v) {
		g, modes := groupOfVolume(v), accessModesOf(v.Spec.AccessModes)
		if p.free[g][modes] = without(p.free[g][modes], v, bySize); len(p.free[g][modes]) == 0 {
			delete(p.free[g], modes)
		}
		if len(p.free[g]) == 0 {
			delete(p.free, g)
		}
	}
	if ref := v.Spec.ClaimRef; ref != nil {
		key := claimKey(ref)
		if delete(p.claimed[key], name); len(p.claimed[key]) == 0 {
			delete(p.claimed, key)
		}
	}
}

func insert[T any](sorted []T, v T, order func(a, b T) int) []T {
	i, _ := slices.BinarySearchFunc(sorted, v, order)
	return slices.Insert(sorted, i, v)
}

func without[T any](sorted []T, v T, order func(a, b T) int) []T {
	i, ok := slices.BinarySearchFunc(sorted, v, order)
	if !ok {
		return sorted
	}
	return slices.Delete(sorted, i, i+1)
}

// find is the volume for the claim: one that names it, or else, unless the
// scheduler chooses, of those with the fewest access modes the one of the least
// capacity.
func (p *pool) find(claim *corev1.PersistentVolumeClaim, delayed bool) (*corev1.PersistentVolume, error) {
	if v := p.reserved(claim); v != nil || delayed {
		return v, nil
	}
	matches, err := selector(claim)
	if err != nil {
		return nil, err
	}
	byModes := p.free[groupOfClaim(claim)]
	want, request := accessModesOf(claim.Spec.AccessModes), claim.Spec.Resources.Requests[corev1.ResourceStorage]
	var sets []accessModes
	for modes := range byModes {
		if modes.has(want) {
			sets = append(sets, modes)
		}
	}
	slices.SortFunc(sets, func(a, b accessModes) int {
		return cmp.Or(bits.OnesCount8(uint8(a))-bits.OnesCount8(uint8(b)), cmp.Compare(a, b))
	})
	for _, modes := range sets {
		sorted := byModes[modes]
		first, _ := slices.BinarySearchFunc(sorted, request, func(v *corev1.PersistentVolume, _ resource.Quantity) int {
			size := v.Spec.Capacity[corev1.ResourceStorage]
			return cmp.Or(size.Cmp(request), 1) // before all of this size
		})
		for _, v := range sorted[first:] {
			if matches(v) {
				return v, nil
			}
		}
	}
	return nil, nil
}

// reserved is a volume that names the claim and fits it. One with its UID comes
// first: the binding was begun and is to be completed.
func (p *pool) reserved(claim *corev1.PersistentVolumeClaim) (best *corev1.PersistentVolume) {
	request := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	better := func(a, b *corev1.PersistentVolume) bool {
		if x, y := a.Spec.ClaimRef.UID != "", b.Spec.ClaimRef.UID != ""; x != y {
			return x
		}
		return bySize(a, b) < 0
	}
	for _, v := range p.claimed[cache.MetaObjectToName(claim)] {
		size := v.Spec.Capacity[corev1.ResourceStorage]
		if !volume.IsVolumeBoundToClaim(v, claim) || v.DeletionTimestamp != nil || size.Cmp(request) < 0 ||
			volume.CheckVolumeModeMismatches(&claim.Spec, &v.Spec) || !volume.CheckAccessModes(claim, v) ||
			deref(claim.Spec.VolumeAttributesClassName, "") != deref(v.Spec.VolumeAttributesClassName, "") {
			continue
		}
		if best == nil || better(v, best) {
			best = v
		}
	}
	return best
}

// selector says which volumes the claim selects by their labels.
func selector(claim *corev1.PersistentVolumeClaim) (func(*corev1.PersistentVolume) bool, error) {
	if claim.Spec.Selector == nil {
		return func(*corev1.PersistentVolume) bool { return true }, nil
	}
	s, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return func(v *corev1.PersistentVolume) bool { return s.Matches(labels.Set(v.Labels)) }, nil
}

// wait keeps a claim that found no volume, so that nominate finds it.
func (p *pool) wait(claim *corev1.PersistentVolumeClaim) {
	key := cache.MetaObjectToName(claim)
	p.forget(key)
	p.waiting[key] = claim
	g := groupOfClaim(claim)
	p.idle[g] = insert(p.idle[g], claim, byRequest)
}

// forget takes the claim out of those that wait.
func (p *pool) forget(key cache.ObjectName) {
	claim := p.waiting[key]
	if claim == nil {
		return
	}
	delete(p.waiting, key)
	g := groupOfClaim(claim)
	if p.idle[g] = without(p.idle[g], claim, byRequest); len(p.idle[g]) == 0 {
		delete(p.idle, g)
	}
}

// nominate takes the claim out that asks for the most of what the volume has.
func (p *pool) nominate(v *corev1.PersistentVolume) (cache.ObjectName, bool) {
	if !available(v) {
		return cache.ObjectName{}, false
	}
	sorted, size, modes := p.idle[groupOfVolume(v)], v.Spec.Capacity[corev1.ResourceStorage], accessModesOf(v.Spec.AccessModes)
	end, _ := slices.BinarySearchFunc(sorted, size, func(c *corev1.PersistentVolumeClaim, _ resource.Quantity) int {
		request := c.Spec.Resources.Requests[corev1.ResourceStorage]
		return cmp.Or(request.Cmp(size), -1) // after all of this size
	})
	for _, claim := range slices.Backward(sorted[:end]) {
		matches, err := selector(claim)
		if err == nil && modes.has(accessModesOf(claim.Spec.AccessModes)) && matches(v) {
			key := cache.MetaObjectToName(claim)
			p.forget(key)
			return key, true
		}
	}
	return cache.ObjectName{}, false
}
