package localstorage

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
)

// release looks at one volume: its claim may be gone.
func (p *provisioner) release(ctx context.Context, v *corev1.PersistentVolume) (time.Duration, error) {
	if !onNode(v, p.node) {
		return 0, nil
	}
	switch releasing(v) {
	case remove:
		of := ""
		if v.Spec.ClaimRef != nil {
			of = v.Spec.ClaimRef.Namespace
		}
		if !p.removals.take(of, cache.MetaObjectToName(v)) {
			return 0, nil // it is looked at again when another of the namespace has ended
		}
		defer p.removals.give(of)
		return p.remove(ctx, v)
	case protect:
		return 0, p.setFinalizers(ctx, v, append(slices.Clone(v.Finalizers), volume.PVDeletionProtectionFinalizer))
	case expose:
		return 0, p.setFinalizers(ctx, v, unprotected(v))
	}
	return 0, nil
}

// unprotected are a volume's finalizers without this provisioner's. Pure.
func unprotected(v *corev1.PersistentVolume) []string {
	return slices.DeleteFunc(slices.Clone(v.Finalizers), func(f string) bool { return f == volume.PVDeletionProtectionFinalizer })
}

// A volume whose pod has just ended may still be mounted: that is waited for, in
// steps of unmountPeriod, and is a failure after unmountTime.
const (
	unmountPeriod = time.Second
	unmountTime   = time.Minute
)

// remove deletes a volume's data, then the volume. What the cache says is asked
// again: the reclaim policy may have just been changed to keep the data.
func (p *provisioner) remove(ctx context.Context, v *corev1.PersistentVolume) (time.Duration, error) {
	now, err := p.client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if now.UID != v.UID || !onNode(now, p.node) || releasing(now) != remove {
		return 0, nil // its event follows
	}
	call, cancel := context.WithTimeout(ctx, copyTime) // a tree may be large
	defer cancel()
	_, err = p.calls.DeleteVolume(call, &csipb.DeleteVolumeRequest{VolumeId: now.Spec.CSI.VolumeHandle})
	if since := now.Status.LastPhaseTransitionTime; status.Code(err) == codes.FailedPrecondition && since != nil && time.Since(since.Time) < unmountTime {
		return unmountPeriod, nil
	}
	if err != nil {
		p.events.Event(v, corev1.EventTypeWarning, "VolumeFailedDelete", err.Error())
		return 0, err
	}
	p.kick()
	return 0, p.forget(ctx, now)
}

// forget deletes the object of a volume whose data is gone.
func (p *provisioner) forget(ctx context.Context, v *corev1.PersistentVolume) error {
	api := p.client.CoreV1().PersistentVolumes()
	if v.DeletionTimestamp == nil {
		err := api.Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(v.UID))})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	now, err := api.Get(ctx, v.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != v.UID {
		return nil
	}
	if err != nil {
		return err
	}
	return p.setFinalizers(ctx, now, unprotected(now))
}

func (p *provisioner) setFinalizers(ctx context.Context, v *corev1.PersistentVolume, all []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": v.UID, "resourceVersion": v.ResourceVersion, "finalizers": all}})
	if err != nil {
		return err
	}
	_, err = p.client.CoreV1().PersistentVolumes().Patch(ctx, v.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
