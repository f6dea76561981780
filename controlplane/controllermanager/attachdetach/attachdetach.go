// Package attachdetach is the persistentvolume-attach-detach-controller. It reads
// Pods, PersistentVolumeClaims, PersistentVolumes, Nodes, CSIDrivers and
// VolumeAttachments, creates a VolumeAttachment for each node whose pods need a
// volume, deletes it when the node has unmounted the volume, and writes
// status.volumesAttached of Nodes.
package attachdetach

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"knarr/controlplane/controllermanager/pods"
	"knarr/internal/controller"
	"knarr/internal/csimigration"
	"knarr/internal/informer"
)

// Name is the controller's.
const Name = "persistentvolume-attach-detach-controller"

const (
	// managed is the annotation of nodes whose volumes this controller attaches.
	managed = "volumes.kubernetes.io/controller-managed-attach-detach"

	// byVolume indexes PersistentVolumes by how Nodes call them, byDriver by their
	// CSI driver.
	byVolume = "attachdetach: volume"
	byDriver = "attachdetach: driver"
	// byInline indexes pods by how Nodes call the volumes that they name themselves and
	// that a driver has taken over from a plugin within Kubernetes.
	byInline = "attachdetach: inline volume"
	// byPV indexes VolumeAttachments by their PersistentVolume, byNode by their node.
	byPV   = "attachdetach: persistent volume"
	byNode = "attachdetach: node"
)

// A key is a volume's name, or a node's.
type key struct {
	volume corev1.UniqueVolumeName
	node   string
}

type reconciler struct {
	pods, claims, volumes, nodes, drivers, attachments cache.Indexer

	client kubernetes.Interface
	events record.EventRecorder
	// add asks for a key to be looked at.
	add func(key)
	// patient says that a volume which is mounted is not detached for the time it took.
	patient bool

	mu       sync.Mutex
	memories map[corev1.UniqueVolumeName]*memory
	// created are attachments that were made and are not in the cache yet, by name:
	// a volume that one node may have is not given to another meanwhile.
	created map[string]*storagev1.VolumeAttachment
	// seen are the nodes whose pods were looked at since they came.
	seen map[string]bool
}

// New returns the controller. With disableForceDetachOnTimeout volumes that stay mounted
// on a node that is not ready are taken from it only once it is out of service.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, events record.EventRecorder, disableForceDetachOnTimeout bool) (*controller.Controller[key], error) {
	core, storage := f.Core().V1(), f.Storage().V1()
	podInformer, claims, volumes, nodes := core.Pods().Informer(), core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(), core.Nodes().Informer()
	drivers, attachments := storage.CSIDrivers().Informer(), storage.VolumeAttachments().Informer()
	if err := pods.IndexClaims(podInformer); err != nil {
		return nil, err
	}
	if err := pods.IndexByNode(podInformer); err != nil {
		return nil, err
	}
	if err := informer.Index(podInformer, cache.Indexers{byInline: indexInline}); err != nil {
		return nil, fmt.Errorf("index pods by inline volume: %w", err)
	}
	if err := informer.Index(volumes, cache.Indexers{byVolume: indexVolume, byDriver: indexDriver}); err != nil {
		return nil, fmt.Errorf("index volumes: %w", err)
	}
	if err := informer.Index(attachments, cache.Indexers{byPV: indexPV, byNode: indexNode}); err != nil {
		return nil, fmt.Errorf("index volume attachments: %w", err)
	}
	r := &reconciler{
		pods: podInformer.GetIndexer(), claims: claims.GetIndexer(), volumes: volumes.GetIndexer(), nodes: nodes.GetIndexer(),
		drivers: drivers.GetIndexer(), attachments: attachments.GetIndexer(), client: client, events: events, patient: disableForceDetachOnTimeout,
		memories: map[corev1.UniqueVolumeName]*memory{}, created: map[string]*storagev1.VolumeAttachment{}, seen: map[string]bool{},
	}
	return &controller.Controller[key]{
		Name:       Name,
		Workers:    10,
		RetryDelay: [2]time.Duration{0, 2*time.Minute + 2*time.Second}, // upstream's longest
		Sources: []controller.Source[key]{
			{Informer: podInformer, Keys: r.ofPod},
			{Informer: claims, Keys: r.ofClaim},
			{Informer: volumes, Keys: ofVolume},
			{Informer: nodes, Keys: func(o metav1.Object) []key { return []key{{node: o.GetName()}} }},
			{Informer: drivers, Keys: r.ofDriver},
			{Informer: attachments, Keys: r.ofAttachment},
		},
		Feeds: []func(context.Context, func(), func(key)) error{
			func(ctx context.Context, ready func(), add func(key)) error {
				r.add = add
				running.Store(r)
				defer running.CompareAndSwap(r, nil)
				ready()
				<-ctx.Done()
				return nil
			},
		},
		Reconcile: r.reconcile,
	}, nil
}

func (r *reconciler) reconcile(ctx context.Context, k key) (time.Duration, error) {
	if k.node != "" {
		return r.reconcileNode(ctx, k.node)
	}
	return r.reconcileVolume(ctx, k.volume)
}

// nameOf is how Nodes call a volume; "" if it is not a CSI driver's.
func nameOf(v *corev1.PersistentVolume) corev1.UniqueVolumeName {
	return nameFor(csimigration.Source(v))
}

func nameFor(c *corev1.CSIPersistentVolumeSource) corev1.UniqueVolumeName {
	if c == nil {
		return ""
	}
	return corev1.UniqueVolumeName(prefix + c.Driver + "^" + c.VolumeHandle)
}

const prefix = "kubernetes.io/csi/"

// split takes apart how Nodes call a volume.
func split(name corev1.UniqueVolumeName) (driver, handle string, ok bool) {
	rest, ok := strings.CutPrefix(string(name), prefix)
	if !ok {
		return "", "", false
	}
	driver, handle, ok = strings.Cut(rest, "^")
	return driver, handle, ok
}

// attachmentName is that of the VolumeAttachment of a volume and a node.
func attachmentName(driver, handle, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

func indexVolume(o any) ([]string, error) {
	if v, ok := o.(*corev1.PersistentVolume); ok {
		if name := nameOf(v); name != "" {
			return []string{string(name)}, nil
		}
	}
	return nil, nil
}

func indexInline(o any) (names []string, err error) {
	if pod, ok := o.(*corev1.Pod); ok {
		for _, v := range inline(pod) {
			names = append(names, string(nameOf(v)))
		}
	}
	return names, nil
}

// inline are the volumes that the pod names itself and a driver has taken over. One whose
// identifiers no driver could know is the kubelet's to complain of.
func inline(pod *corev1.Pod) (all []*corev1.PersistentVolume) {
	for i := range pod.Spec.Volumes {
		if v, err := csimigration.Inline(&pod.Spec.Volumes[i], pod.Namespace); err == nil && v != nil {
			all = append(all, v)
		}
	}
	return all
}

func indexDriver(o any) ([]string, error) {
	if v, ok := o.(*corev1.PersistentVolume); ok {
		if c := csimigration.Source(v); c != nil {
			return []string{c.Driver}, nil
		}
	}
	return nil, nil
}

func indexPV(o any) ([]string, error) {
	if a, ok := o.(*storagev1.VolumeAttachment); ok && a.Spec.Source.PersistentVolumeName != nil {
		return []string{*a.Spec.Source.PersistentVolumeName}, nil
	}
	return nil, nil
}

func indexNode(o any) ([]string, error) {
	if a, ok := o.(*storagev1.VolumeAttachment); ok {
		return []string{a.Spec.NodeName}, nil
	}
	return nil, nil
}
