package attachdetach

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"

	"knarr/controlplane/controllermanager/pods"
)

// read puts together what the caches know of a volume.
func (r *reconciler) read(ctx context.Context, name corev1.UniqueVolumeName) (*volume, error) {
	v := &volume{name: name, wanted: map[string][]*corev1.Pod{}, mounting: map[string]bool{}, attachments: map[string]*storagev1.VolumeAttachment{}, nodes: map[string]node{}}
	var ok bool
	if v.driver, v.handle, ok = split(name); !ok {
		return v, nil
	}
	v.multi = true
	pvs := list[*corev1.PersistentVolume](r.volumes, byVolume, string(name))
	for _, pv := range pvs {
		if v.pv == "" || pv.Spec.ClaimRef != nil {
			v.pv = pv.Name
		}
		v.multi, v.migrated = v.multi && shared(pv), pv.Spec.CSI == nil
		if err := r.readPods(v, pv); err != nil {
			return nil, err
		}
	}
	if err := r.readInline(v); err != nil {
		return nil, err
	}
	if err := r.readAttachments(ctx, v, pvs); err != nil {
		return nil, err
	}
	for name := range v.wanted {
		v.nodes[name] = r.readNode(v, name)
	}
	for name := range v.attachments {
		v.nodes[name] = r.readNode(v, name)
	}
	return v, nil
}

// shared says whether several nodes may have the volume at once.
func shared(pv *corev1.PersistentVolume) bool {
	modes := pv.Spec.AccessModes
	return len(modes) == 0 || slices.Contains(modes, corev1.ReadWriteMany) || slices.Contains(modes, corev1.ReadOnlyMany)
}

// readPods notes the pods that need a PersistentVolume.
func (r *reconciler) readPods(v *volume, pv *corev1.PersistentVolume) error {
	ref := pv.Spec.ClaimRef
	if ref == nil || r.bound(ref.Namespace, ref.Name) != pv {
		return nil
	}
	claiming, err := pods.Claiming(r.pods, cache.NewObjectName(ref.Namespace, ref.Name))
	if err != nil {
		return err
	}
	for _, pod := range claiming {
		if r.owns(pod, ref) {
			r.need(v, pod)
		}
	}
	return nil
}

// readInline notes the pods that name the volume themselves.
func (r *reconciler) readInline(v *volume) error {
	naming, err := r.pods.ByIndex(byInline, string(v.name))
	if err != nil {
		return fmt.Errorf("pods of volume %s: %w", v.name, err)
	}
	for _, o := range naming {
		pod := o.(*corev1.Pod)
		for _, own := range inline(pod) {
			if nameOf(own) == v.name {
				v.inline, v.migrated = own, true
				v.multi = v.multi && shared(own)
				r.need(v, pod)
				break
			}
		}
	}
	return nil
}

// need notes a pod that needs the volume, or only its node where the volume's driver
// wants no attaching.
func (r *reconciler) need(v *volume, pod *corev1.Pod) {
	name := pod.Spec.NodeName
	switch {
	case name == "" || terminated(pod) || !r.manages(name):
	case !r.attachRequired(v.driver):
		v.mounting[name] = true
	default:
		v.wanted[name] = append(v.wanted[name], pod)
	}
}

// attachRequired says whether volumes of a driver are to be attached.
func (r *reconciler) attachRequired(driver string) bool {
	d := get[*storagev1.CSIDriver](r.drivers, driver)
	return d == nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// owns says whether the claim of that name is the pod's: one for an ephemeral
// volume has to be its own.
func (r *reconciler) owns(pod *corev1.Pod, ref *corev1.ObjectReference) bool {
	claim := get[*corev1.PersistentVolumeClaim](r.claims, ref.Namespace+"/"+ref.Name)
	return claim != nil && slices.ContainsFunc(pod.Spec.Volumes, func(o corev1.Volume) bool {
		return pods.Claim(pod, &o) == ref.Name && (o.Ephemeral == nil || ephemeral.VolumeIsForPod(pod, claim) == nil)
	})
}

// manages says whether a node is there and leaves attaching to this controller.
func (r *reconciler) manages(name string) bool {
	n := get[*corev1.Node](r.nodes, name)
	return n != nil && metav1.HasAnnotation(n.ObjectMeta, managed)
}

// terminated says whether a pod needs its volumes no more.
func terminated(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	s := pod.Status
	return pod.DeletionTimestamp != nil && !slices.ContainsFunc(slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses), func(c corev1.ContainerStatus) bool {
		return c.State.Terminated == nil && c.State.Waiting == nil
	})
}

// readAttachments notes the attachments of a volume that this controller made,
// also those that the cache does not have yet.
func (r *reconciler) readAttachments(ctx context.Context, v *volume, pvs []*corev1.PersistentVolume) error {
	for _, pv := range pvs {
		for _, a := range list[*storagev1.VolumeAttachment](r.attachments, byPV, pv.Name) {
			if a.Name == attachmentName(v.driver, v.handle, a.Spec.NodeName) {
				v.attachments[a.Spec.NodeName] = a
			}
		}
	}
	if len(pvs) == 0 || v.inline != nil {
		for _, name := range r.nodes.ListKeys() {
			if a := get[*storagev1.VolumeAttachment](r.attachments, attachmentName(v.driver, v.handle, name)); a != nil {
				v.attachments[name] = a
			}
		}
	}
	for _, made := range r.made(v) {
		if v.attachments[made.Spec.NodeName] != nil {
			r.setMade(made.Name, nil)
			continue
		}
		a, err := r.client.StorageV1().VolumeAttachments().Get(ctx, made.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			r.setMade(made.Name, nil)
			continue
		}
		if err != nil {
			return fmt.Errorf("get volume attachment %s: %w", made.Name, err)
		}
		v.attachments[a.Spec.NodeName] = a
	}
	return nil
}

// made are the attachments of a volume that were made and not seen since.
func (r *reconciler) made(v *volume) (all []*storagev1.VolumeAttachment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.created {
		if a.Name == attachmentName(v.driver, v.handle, a.Spec.NodeName) {
			all = append(all, a)
		}
	}
	return all
}

func (r *reconciler) setMade(name string, a *storagev1.VolumeAttachment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a == nil {
		delete(r.created, name)
		return
	}
	r.created[name] = a
}

// readNode is what a Node says. One that is gone may still run and have
// everything mounted.
func (r *reconciler) readNode(v *volume, name string) node {
	n := get[*corev1.Node](r.nodes, name)
	if n == nil {
		return node{inUse: true}
	}
	return nodeOf(n, v.name)
}

func nodeOf(n *corev1.Node, volume corev1.UniqueVolumeName) node {
	return node{
		exists:  true,
		foreign: !metav1.HasAnnotation(n.ObjectMeta, managed),
		ready: slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}),
		outOfService: slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }),
		inUse:        slices.Contains(n.Status.VolumesInUse, volume),
		reported:     slices.ContainsFunc(n.Status.VolumesAttached, func(a corev1.AttachedVolume) bool { return a.Name == volume }),
	}
}

// unwantedSince is since when a node has the volume that no pod of it needs.
func (r *reconciler) unwantedSince(v *volume, name string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.memories[v.name]; m != nil {
		if at := m.unwanted[name]; !at.IsZero() {
			return at
		}
	}
	return time.Now()
}
