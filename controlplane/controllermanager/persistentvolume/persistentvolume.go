// Package persistentvolume is the persistentvolume-binder-controller. It reads
// PersistentVolumeClaims, PersistentVolumes, StorageClasses and Pods, binds
// claims and volumes to each other, writes the specs, annotations and status of
// both, names the provisioner of claims that no volume fits, and releases or
// deletes volumes whose claim is gone. Where that is asked for, it makes volumes of host
// paths, as directories of its own host, and removes them.
package persistentvolume

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"

	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/controller"
	"knarr/internal/informer"
	"knarr/internal/run"
)

// Name is the controller's.
const Name = "persistentvolume-binder-controller"

const (
	// byVolume indexes claims by the volume that they name.
	byVolume = "persistentvolume: volume"
	// unboundByClass indexes claims that are not bound by their class.
	unboundByClass = "persistentvolume: unbound by class"
)

type reconciler struct {
	claims, volumes, classes, pods cache.Indexer
	client                         kubernetes.Interface
	events                         record.EventRecorder
	// add asks for a key to be looked at.
	add func(cache.ObjectName)

	// mu is held while a key is reconciled. Two claims decided on at once could
	// choose the same volume: the second write would fail, and be tried again.
	mu     sync.Mutex
	filled bool
	pool   *pool
	// written are claims as this controller stored them, until the cache has them.
	written map[cache.ObjectName]*corev1.PersistentVolumeClaim
	// nominated are free volumes by the claim that was enqueued to take them.
	nominated map[cache.ObjectName][]string
	// provisioning are the claims whose volumes are being made, deleting the volumes that
	// are being deleted: how long it takes is counted.
	provisioning map[cache.ObjectName]operation
	deleting     map[string]operation
	// recyclers are the pods that this controller made to empty volumes, by the volume.
	recyclers map[string]*madePod
	// removals are those of directories, by their volumes, removing the goroutines; ended
	// says that no further one begins.
	removals map[string]*removal
	removing run.Group
	ended    bool
	Config
}

// Config is what may be said of the controller.
type Config struct {
	// NoDynamicProvisioning hands no claim over to a provisioner.
	NoDynamicProvisioning bool
	// HostPath and NFS empty the volumes of those kinds.
	HostPath, NFS Recycler
	// HostPaths is the directory in which volumes of kubernetes.io/host-path are made.
	// Default: none are.
	HostPaths string
}

// New returns the controller. A key without a namespace is a volume's, any other
// a claim's.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder, c Config) (*controller.Controller[cache.ObjectName], error) {
	core := f.Core().V1()
	claims, volumes := core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer()
	classes, podInformer := f.Storage().V1().StorageClasses().Informer(), core.Pods().Informer()
	if err := pods.IndexClaims(podInformer); err != nil {
		return nil, err
	}
	if err := informer.Index(claims, cache.Indexers{byVolume: volumeOf, unboundByClass: classOfUnbound}); err != nil {
		return nil, fmt.Errorf("index claims: %w", err)
	}
	r := &reconciler{
		claims: claims.GetIndexer(), volumes: volumes.GetIndexer(), classes: classes.GetIndexer(), pods: podInformer.GetIndexer(),
		client: client, events: events, pool: newPool(), Config: c, recyclers: map[string]*madePod{}, removals: map[string]*removal{},
		written: map[cache.ObjectName]*corev1.PersistentVolumeClaim{}, nominated: map[cache.ObjectName][]string{},
		provisioning: map[cache.ObjectName]operation{}, deleting: map[string]operation{},
	}
	return &controller.Controller[cache.ObjectName]{
		Name:       Name,
		RetryDelay: [2]time.Duration{0, 15 * time.Second}, // upstream looks at everything as often
		Sources: []controller.Source[cache.ObjectName]{
			controller.Self(claims),
			controller.Self(volumes),
			{Informer: classes, Keys: r.waitingForClass},
			{Informer: podInformer, Keys: r.waitingForPod},
			{Informer: podInformer, Keys: waitingForRecycler},
		},
		Feeds: []func(context.Context, func(), func(cache.ObjectName)) error{
			func(ctx context.Context, ready func(), add func(cache.ObjectName)) error {
				r.add, r.ended = add, false
				running.Store(r)
				defer running.CompareAndSwap(r, nil)
				ready()
				<-ctx.Done()
				r.mu.Lock()
				r.ended = true
				r.mu.Unlock()
				r.removing.Wait()
				return nil
			},
		},
		Reconcile: r.reconcile,
	}, nil
}

func volumeOf(o any) ([]string, error) {
	if c, ok := o.(*corev1.PersistentVolumeClaim); ok && c.Spec.VolumeName != "" {
		return []string{c.Spec.VolumeName}, nil
	}
	return nil, nil
}

func classOfUnbound(o any) ([]string, error) {
	if c, ok := o.(*corev1.PersistentVolumeClaim); ok && !bindCompleted(c) {
		return []string{volume.GetPersistentVolumeClaimClass(c)}, nil
	}
	return nil, nil
}

// waitingForClass are the claims that are not bound and have the class, or would
// get it as the default.
func (r *reconciler) waitingForClass(o metav1.Object) (keys []cache.ObjectName) {
	names := []string{o.GetName()}
	if class, ok := o.(*storagev1.StorageClass); ok && isDefault(class) {
		names = append(names, "")
	}
	for _, name := range names {
		keys = append(keys, r.claimsBy(unboundByClass, name)...)
	}
	return keys
}

// waitingForPod are the claims whose binding waits for the pod to be scheduled.
func (r *reconciler) waitingForPod(o metav1.Object) (keys []cache.ObjectName) {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Spec.NodeName != "" {
		return nil
	}
	for _, name := range pods.Claims(pod) {
		claim := lookup[*corev1.PersistentVolumeClaim](r.claims, pod.Namespace+"/"+name)
		if claim != nil && !bindCompleted(claim) && delayed(r.classOf(claim)) && !volume.IsDelayBindingProvisioning(claim) {
			keys = append(keys, cache.MetaObjectToName(claim))
		}
	}
	return keys
}

func (r *reconciler) claimsBy(index, value string) (keys []cache.ObjectName) {
	all, err := r.claims.ByIndex(index, value)
	if err != nil {
		return nil
	}
	for _, o := range all {
		keys = append(keys, cache.MetaObjectToName(o.(*corev1.PersistentVolumeClaim)))
	}
	return keys
}

func (r *reconciler) classOf(claim *corev1.PersistentVolumeClaim) *storagev1.StorageClass {
	return r.classNamed(volume.GetPersistentVolumeClaimClass(claim))
}

func (r *reconciler) classNamed(name string) *storagev1.StorageClass {
	if name == "" {
		return nil
	}
	return lookup[*storagev1.StorageClass](r.classes, name)
}

func lookup[T any](in cache.Indexer, key string) (none T) {
	if o, ok, err := in.GetByKey(key); err == nil && ok {
		return o.(T)
	}
	return none
}

func (r *reconciler) reconcile(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.filled {
		// Every volume is known before the first claim chooses one.
		for _, o := range r.volumes.List() {
			r.pool.set(o.(*corev1.PersistentVolume))
		}
		r.filled = true
	}
	if key.Namespace == "" {
		return r.syncVolume(ctx, key.Name)
	}
	return r.syncClaim(ctx, key)
}
