package attachdetach

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/csimigration"
)

// get is an object of a cache, nil if there is none.
func get[T any](in cache.Indexer, key string) (none T) {
	if o, ok, err := in.GetByKey(key); err == nil && ok {
		return o.(T)
	}
	return none
}

// list are the objects that an index has under a value.
func list[T any](in cache.Indexer, index, value string) []T {
	all, err := in.ByIndex(index, value)
	if err != nil {
		return nil
	}
	out := make([]T, len(all))
	for i, o := range all {
		out[i] = o.(T)
	}
	return out
}

// bound is the volume of a claim, nil if the claim is not bound.
func (r *reconciler) bound(namespace, name string) *corev1.PersistentVolume {
	claim := get[*corev1.PersistentVolumeClaim](r.claims, namespace+"/"+name)
	if claim == nil || claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return nil
	}
	v := get[*corev1.PersistentVolume](r.volumes, claim.Spec.VolumeName)
	if v == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != claim.UID {
		return nil
	}
	return v
}

// ofPod are the volumes of a pod, and its node where a claim says nothing: the
// node's volumes are then looked at.
func (r *reconciler) ofPod(o metav1.Object) (keys []key) {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil
	}
	for _, name := range pods.Claims(pod) {
		if v := r.bound(pod.Namespace, name); v == nil {
			keys = append(keys, key{node: pod.Spec.NodeName})
		} else {
			keys = append(keys, ofVolume(v)...)
		}
	}
	for _, v := range inline(pod) {
		keys = append(keys, key{volume: nameOf(v)})
	}
	return keys
}

func (r *reconciler) ofClaim(o metav1.Object) []key {
	if v := r.bound(o.GetNamespace(), o.GetName()); v != nil {
		return ofVolume(v)
	}
	return nil
}

func ofVolume(o metav1.Object) []key {
	if v, ok := o.(*corev1.PersistentVolume); ok {
		if name := nameOf(v); name != "" {
			return []key{{volume: name}}
		}
	}
	return nil
}

func (r *reconciler) ofDriver(o metav1.Object) (keys []key) {
	for _, v := range list[*corev1.PersistentVolume](r.volumes, byDriver, o.GetName()) {
		keys = append(keys, key{volume: nameOf(v)})
	}
	for _, name := range r.pods.ListIndexFuncValues(byInline) {
		if driver, _, ok := split(corev1.UniqueVolumeName(name)); ok && driver == o.GetName() {
			keys = append(keys, key{volume: corev1.UniqueVolumeName(name)})
		}
	}
	return keys
}

func (r *reconciler) ofAttachment(o metav1.Object) []key {
	a, ok := o.(*storagev1.VolumeAttachment)
	if !ok {
		return nil
	}
	if name := r.attachmentOf(a); name != "" {
		return []key{{volume: name}, {node: a.Spec.NodeName}}
	}
	return nil
}

// ofSource is the volume of that source if the attachment has the name that this
// controller gives.
func ofSource(a *storagev1.VolumeAttachment, c *corev1.CSIPersistentVolumeSource) corev1.UniqueVolumeName {
	if c == nil || a.Name != attachmentName(c.Driver, c.VolumeHandle, a.Spec.NodeName) {
		return ""
	}
	return nameFor(c)
}

// attachmentOf is the volume of an attachment that this controller made, "" of
// any other. Where the PersistentVolume is gone the Node knows it.
func (r *reconciler) attachmentOf(a *storagev1.VolumeAttachment) corev1.UniqueVolumeName {
	if pv := a.Spec.Source.PersistentVolumeName; pv != nil {
		if v := get[*corev1.PersistentVolume](r.volumes, *pv); v != nil {
			return ofSource(a, csimigration.Source(v))
		}
	}
	if spec := a.Spec.Source.InlineVolumeSpec; spec != nil {
		return ofSource(a, spec.CSI)
	}
	n := get[*corev1.Node](r.nodes, a.Spec.NodeName)
	if n == nil {
		return ""
	}
	is := func(name corev1.UniqueVolumeName) bool {
		driver, handle, ok := split(name)
		return ok && a.Name == attachmentName(driver, handle, n.Name)
	}
	for _, o := range n.Status.VolumesAttached {
		if is(o.Name) {
			return o.Name
		}
	}
	for _, name := range n.Status.VolumesInUse {
		if is(name) {
			return name
		}
	}
	return ""
}
