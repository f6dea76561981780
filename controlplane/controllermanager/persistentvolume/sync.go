package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	"knarr/controlplane/controllermanager/pods"
	"knarr/controlplane/controllermanager/volumemetrics"
)

// maxSteps is more than any object needs; what is left comes with its events.
const maxSteps = 10

// reportAgain is when the event of a claim that waits is written anew: it lives for an hour.
const reportAgain = 30 * time.Minute

// syncClaim takes the steps of the claim.
func (r *reconciler) syncClaim(ctx context.Context, key cache.ObjectName) (after time.Duration, err error) {
	r.pool.forget(key)
	for range maxSteps {
		claim := r.claim(key)
		if claim == nil {
			break
		}
		v, err := r.viewClaim(ctx, claim)
		if err != nil {
			return 0, err
		}
		s := v.next()
		if s.provisioner != "" {
			begin(r.provisioning, key, s.provisioner)
		}
		if s.create != nil {
			if s, err = r.create(ctx, v, s.create); err != nil {
				fail(r.provisioning, key, volumemetrics.Provision)
				return 0, err
			}
		}
		again, err := r.take(ctx, s)
		if err != nil {
			fail(r.provisioning, key, volumemetrics.Provision)
			return 0, err
		}
		if s.failed {
			fail(r.provisioning, key, volumemetrics.Provision)
		}
		if s.idle {
			r.pool.wait(claim)
		}
		if s.last && len(s.events) > 0 && claim.Status.Phase != corev1.ClaimLost {
			after = reportAgain
		}
		if s.after > 0 {
			after = s.after
		}
		if !again {
			break
		}
	}
	r.observeClaim(key)
	claim := r.claim(key)
	for name, v := range r.pool.claimed[key] {
		if losing(v, claim) {
			r.add(cache.ObjectName{Name: name})
		}
	}
	// Volumes that the claim was to take, and did not, are for others.
	for _, name := range r.nominated[key] {
		if v := r.pool.volumes[name]; v != nil && available(v) {
			r.add(cache.ObjectName{Name: name})
		}
	}
	delete(r.nominated, key)
	return after, nil
}

// losing says that the volume is bound to a claim that is gone, or has another
// volume.
func losing(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	ref := v.Spec.ClaimRef
	if ref == nil || ref.UID == "" || v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed {
		return false
	}
	return claim == nil || claim.UID != ref.UID || claim.Spec.VolumeName != "" && claim.Spec.VolumeName != v.Name
}

// syncVolume takes the steps of the volume, and finds a claim for it when it is
// free.
func (r *reconciler) syncVolume(ctx context.Context, name string) (after time.Duration, err error) {
	var last *corev1.ObjectReference
	if v := r.pool.volumes[name]; v != nil {
		last = v.Spec.ClaimRef
	}
	for range maxSteps {
		v := r.volume(name)
		if v == nil {
			if m := r.removals[name]; m != nil && m.done {
				delete(r.removals, name)
			}
			end(r.deleting, name, volumemetrics.Delete)
			if err := r.stopRecycler(ctx, name); err != nil {
				return 0, err
			}
			if last != nil {
				r.add(claimKey(last))
			}
			break
		}
		view, err := r.viewVolume(ctx, v)
		if err != nil {
			return 0, err
		}
		if view.recycling == nil {
			if err := r.stopRecycler(ctx, name); err != nil {
				return 0, err
			}
		}
		s := view.next()
		switch err := r.recyclePods(ctx, v, s); {
		case errors.Is(err, errChanged):
			return 0, nil // its event follows
		case err != nil:
			s = view.failed("VolumeFailedRecycle", "Recycle failed: "+err.Error())
			s.after = recycleAgain
		}
		if s.discard != "" {
			switch done, failed, err := r.discard(ctx, v, s.discard); {
			case errors.Is(err, errChanged), apierrors.IsNotFound(err):
				return 0, nil // its event follows
			case err != nil:
				return 0, fmt.Errorf("get volume %s: %w", name, err)
			case failed != nil:
				s = view.failed("VolumeFailedDelete", failed.Error())
				s.deletes, s.after = true, recycleAgain
			case !done:
				s = step{last: true, deletes: true} // the volume is looked at again then
			}
		}
		after = s.after
		if s.deletes {
			begin(r.deleting, name, r.provisionerOf(v))
		}
		again, err := r.take(ctx, s)
		if s.deletes && (err != nil || len(s.events) > 0) {
			fail(r.deleting, name, volumemetrics.Delete)
		}
		if err != nil {
			return 0, err
		}
		if !again {
			break
		}
	}
	v := r.pool.volumes[name]
	for _, key := range r.claimsBy(byVolume, name) {
		if c := r.claim(key); c != nil && (v == nil || !bindCompleted(c) || c.Status.Phase != corev1.ClaimBound || taken(v, c)) {
			r.add(key)
		}
	}
	if v == nil || delayed(lookup[*storagev1.StorageClass](r.classes, volume.GetPersistentVolumeClass(v))) {
		return after, nil
	}
	if key, ok := r.pool.nominate(v); ok {
		r.nominated[key] = append(r.nominated[key], name)
		r.add(key)
	}
	return after, nil
}

// taken says that the volume was given to another claim, as those who fill volumes do once
// theirs is full: they wait until the claim is lost.
func taken(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	ref := v.Spec.ClaimRef
	return ref != nil && ref.UID != claim.UID
}

// claim is the newest that is known of a claim, nil if it is gone.
func (r *reconciler) claim(key cache.ObjectName) *corev1.PersistentVolumeClaim {
	cached := lookup[*corev1.PersistentVolumeClaim](r.claims, key.String())
	own := r.written[key]
	if own == nil {
		return cached
	}
	if cached == nil || newer(cached, own) {
		delete(r.written, key)
		return cached
	}
	return own
}

// volume is the newest that is known of a volume, nil if it is gone.
func (r *reconciler) volume(name string) *corev1.PersistentVolume {
	cached := lookup[*corev1.PersistentVolume](r.volumes, name)
	if cached == nil {
		r.pool.remove(name)
		return nil
	}
	r.pool.set(cached)
	return r.pool.volumes[name]
}

// viewClaim gathers what is decided on. That a bound claim's volume is gone is
// concluded from the server's own answer.
func (r *reconciler) viewClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*claimView, error) {
	v := &claimView{claim: claim, class: r.classOf(claim), static: r.NoDynamicProvisioning, directory: r.HostPaths}
	var err error
	if name := claim.Spec.VolumeName; name != "" {
		v.volume = r.volume(name)
		if v.volume == nil && bindCompleted(claim) && claim.Status.Phase != corev1.ClaimLost {
			v.volume, err = r.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				v.volume, err = nil, nil
			}
		}
		return v, err
	}
	if bindCompleted(claim) {
		return v, nil
	}
	if v.volume, err = r.pool.find(claim, delayed(v.class)); err != nil || v.volume != nil {
		return v, err
	}
	if !volume.PersistentVolumeClaimHasClass(claim) {
		var all []*storagev1.StorageClass
		for _, o := range r.classes.List() {
			all = append(all, o.(*storagev1.StorageClass))
		}
		v.defaultClass = defaultOf(all)
	}
	if delayed(v.class) {
		v.pods, err = r.unscheduled(claim)
	}
	return v, err
}

// unscheduled are the names of the pods with the claim that have no node.
func (r *reconciler) unscheduled(claim *corev1.PersistentVolumeClaim) (names []string, err error) {
	list, err := pods.Claiming(r.pods, cache.MetaObjectToName(claim))
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		if p.Spec.NodeName == "" && pods.Active(p) {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// viewVolume gathers what is decided on. That the claim is gone, or is another of
// the same name, is concluded from the server's own answer.
func (r *reconciler) viewVolume(ctx context.Context, v *corev1.PersistentVolume) (*volumeView, error) {
	view := &volumeView{volume: v, directory: r.HostPaths}
	ref := v.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return view, nil
	}
	claim := r.claim(claimKey(ref))
	released := v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed
	if claim == nil && !released || claim != nil && claim.UID != ref.UID {
		var err error
		claim, err = r.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return view, nil
		}
		if err != nil {
			return nil, fmt.Errorf("get claim of volume %s: %w", v.Name, err)
		}
	}
	if claim != nil && claim.UID == ref.UID {
		view.claim = claim
	}
	if view.claim == nil && released && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		var err error
		if view.recycling, err = r.viewRecycling(ctx, v); err != nil {
			return nil, err
		}
	}
	return view, nil
}

// take does one step. again says that there may be another.
func (r *reconciler) take(ctx context.Context, s step) (again bool, err error) {
	began := time.Now()
	err = r.store(ctx, s)
	if s.retroactive {
		retroactive.Inc()
		if err != nil {
			retroactiveFailed.Inc()
		}
	}
	if s.remove != nil {
		volumemetrics.Done(volumemetrics.Deletion, hostPath, false, time.Since(began), err != nil)
	}
	if err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil // its event follows
		}
		return false, err
	}
	for _, e := range s.events {
		r.events.Event(e.on, e.kind, e.reason, e.message)
	}
	for _, key := range s.enqueue {
		r.add(key)
	}
	return !s.last && s.remove == nil && s.err == nil, s.err
}

// store writes the step's object. Each write is of the revision that was decided
// on: whoever was faster is looked at anew.
func (r *reconciler) store(ctx context.Context, s step) (err error) {
	switch volumes := r.client.CoreV1().PersistentVolumes(); {
	case s.remove != nil:
		return volumes.Delete(ctx, s.remove.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.remove.UID, ResourceVersion: &s.remove.ResourceVersion}})
	case s.volume != nil:
		var stored *corev1.PersistentVolume
		if s.status {
			stored, err = volumes.UpdateStatus(ctx, s.volume, metav1.UpdateOptions{})
		} else {
			stored, err = volumes.Update(ctx, s.volume, metav1.UpdateOptions{})
		}
		if err == nil {
			r.pool.set(stored)
		}
	case s.claim != nil:
		claims := r.client.CoreV1().PersistentVolumeClaims(s.claim.Namespace)
		var stored *corev1.PersistentVolumeClaim
		if s.status {
			stored, err = claims.UpdateStatus(ctx, s.claim, metav1.UpdateOptions{})
		} else {
			stored, err = claims.Update(ctx, s.claim, metav1.UpdateOptions{})
		}
		if err == nil {
			r.written[cache.MetaObjectToName(stored)] = stored
		}
	}
	return err
}
