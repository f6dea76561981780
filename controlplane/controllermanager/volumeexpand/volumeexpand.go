// Package volumeexpand is the persistentvolume-expander-controller. It reads
// PersistentVolumeClaims and PersistentVolumes, and hands claims that ask for
// more than their volume has over to the external resizer of its CSI driver: by
// an event, and by an annotation where the driver has taken over from a plugin
// within Kubernetes.
package volumeexpand

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/internal/controller"
	"knarr/internal/csimigration"
)

// Name is the controller's.
const Name = "persistentvolume-expander-controller"

const (
	resizer           = "volume.kubernetes.io/storage-resizer"
	preResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"
	externalExpanding = "ExternalExpanding"
)

type reconciler struct {
	claims, volumes cache.Indexer
	client          kubernetes.Interface
	events          record.EventRecorder

	mu sync.Mutex
	// handed are the sizes of claims that were handed over, so that other changes
	// of the claim repeat no event.
	handed map[cache.ObjectName]sizes
}

// sizes are what a claim asks for and what it has.
type sizes struct {
	uid           types.UID
	request, have string
}

// New returns the controller.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder) *controller.Controller[cache.ObjectName] {
	claims, volumes := f.Core().V1().PersistentVolumeClaims().Informer(), f.Core().V1().PersistentVolumes().Informer()
	r := &reconciler{claims: claims.GetIndexer(), volumes: volumes.GetIndexer(), client: client, events: events, handed: map[cache.ObjectName]sizes{}}
	return &controller.Controller[cache.ObjectName]{
		Name:    Name,
		Workers: 10,
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(claims),
			{Informer: volumes}, // a bound claim's volume is there before
		},
		Reconcile: r.reconcile,
	}
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	obj, ok, err := r.claims.GetByKey(key.String())
	if err != nil {
		return 0, err
	}
	claim, _ := obj.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Status.Phase != corev1.ClaimBound {
		r.mark(key, sizes{})
		return 0, nil
	}
	now := sizesOf(claim)
	if r.marked(key) == now {
		return 0, nil
	}
	volume, err := r.volume(ctx, claim)
	if err != nil {
		return 0, err
	}
	if larger(claim, volume) {
		if err := r.handOver(ctx, claim, volume); err != nil {
			return 0, err
		}
	}
	r.mark(key, now)
	return 0, nil
}

func sizesOf(claim *corev1.PersistentVolumeClaim) sizes {
	text := func(q resource.Quantity) string { return q.String() }
	return sizes{claim.UID, text(claim.Spec.Resources.Requests[corev1.ResourceStorage]), text(claim.Status.Capacity[corev1.ResourceStorage])}
}

func (r *reconciler) mark(key cache.ObjectName, s sizes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s == (sizes{}) {
		delete(r.handed, key)
		return
	}
	r.handed[key] = s
}

func (r *reconciler) marked(key cache.ObjectName) sizes {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handed[key]
}

// volume is the one that the claim is bound to.
func (r *reconciler) volume(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	obj, ok, err := r.volumes.GetByKey(claim.Spec.VolumeName)
	v, _ := obj.(*corev1.PersistentVolume)
	if err == nil && (!ok || !bound(v, claim)) { // the cache may be behind
		v, err = r.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("failed to get PV %q: %w", claim.Spec.VolumeName, err)
	}
	if !bound(v, claim) {
		return nil, fmt.Errorf("persistent Volume is not bound to PVC being updated : %s/%s", claim.Namespace, claim.Name)
	}
	return v, nil
}

func bound(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	ref := v.Spec.ClaimRef
	return ref != nil && ref.Namespace == claim.Namespace && ref.UID == claim.UID
}

// larger says that the claim asks for more than it has, or that an expansion of
// its volume was begun.
func larger(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) bool {
	request, have := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	return request.Cmp(have) > 0 || metav1.HasAnnotation(v.ObjectMeta, preResizeCapacity)
}

// handOver asks the external resizer to act, and says so in an event.
func (r *reconciler) handOver(ctx context.Context, claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) error {
	plugin := csimigration.Plugin(v)
	if plugin == "" {
		r.events.Event(claim, corev1.EventTypeNormal, externalExpanding, "waiting for an external controller to expand this PVC")
		return nil
	}
	r.events.Eventf(claim, corev1.EventTypeNormal, externalExpanding, "CSI migration enabled for %s; waiting for external resizer to expand the pvc", plugin)
	driver := csimigration.Driver(plugin)
	if claim.Annotations[resizer] == driver {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "resourceVersion": claim.ResourceVersion, "annotations": map[string]string{resizer: driver},
	}})
	if err == nil {
		_, err = r.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return err
	}
	message := fmt.Sprintf("error setting resizer annotation to pvc %s/%s, with error %v", claim.Namespace, claim.Name, err)
	r.events.Event(claim, corev1.EventTypeWarning, externalExpanding, message)
	return errors.New(message)
}
