package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	"knarr/controlplane/scheduler/framework"
	"knarr/controlplane/scheduler/plugins"
	"knarr/internal/informer"
	"knarr/internal/run"
)

// volumeBindTimeout is how long a placed pod waits for its volumes.
const volumeBindTimeout = 10 * time.Minute

// Indices of volumes and attachments.
const (
	byClass  = "class"
	byNode   = "node"
	byVolume = "volume"
)

// storage is what is known of storage, with what was decided laid over it
// until it is seen written.
type storage struct {
	claims, volumes, classes, nodes, drivers, capacities, attachments cache.Indexer
	informers                                                         []cache.SharedIndexInformer

	selected map[string]string                   // claims' keys to the node their volume is to be made at
	given    map[string]*corev1.PersistentVolume // by name, with the claim they are given to
}

func newStorage(f informers.SharedInformerFactory) (*storage, error) {
	core, st := f.Core().V1(), f.Storage().V1()
	s := &storage{selected: map[string]string{}, given: map[string]*corev1.PersistentVolume{}, informers: []cache.SharedIndexInformer{
		core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(), st.StorageClasses().Informer(),
		st.CSINodes().Informer(), st.CSIDrivers().Informer(), st.CSIStorageCapacities().Informer(),
		st.VolumeAttachments().Informer(),
	}}
	for i, dst := range []*cache.Indexer{&s.claims, &s.volumes, &s.classes, &s.nodes, &s.drivers, &s.capacities, &s.attachments} {
		*dst = s.informers[i].GetIndexer()
	}
	err := informer.Index(s.volumes, cache.Indexers{byClass: func(o any) ([]string, error) {
		return []string{volume.GetPersistentVolumeClass(o.(*corev1.PersistentVolume))}, nil
	}})
	if err != nil {
		return nil, fmt.Errorf("index of volumes: %w", err)
	}
	err = informer.Index(s.attachments, cache.Indexers{
		byNode: func(o any) ([]string, error) { return []string{o.(*storagev1.VolumeAttachment).Spec.NodeName}, nil },
		byVolume: func(o any) ([]string, error) {
			if name := o.(*storagev1.VolumeAttachment).Spec.Source.PersistentVolumeName; name != nil {
				return []string{*name}, nil
			}
			return nil, nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("index of attachments: %w", err)
	}
	return s, nil
}

func lookup[T any](in cache.Indexer, key string) (none T) {
	if o, ok, _ := in.GetByKey(key); ok {
		return o.(T)
	}
	return none
}

func (s *storage) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	key := namespace + "/" + name
	c := lookup[*corev1.PersistentVolumeClaim](s.claims, key)
	if node, ok := s.selected[key]; ok && c != nil && c.Annotations[volume.AnnSelectedNode] != node {
		c = c.DeepCopy()
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnSelectedNode, node)
	}
	return c
}

func (s *storage) Volume(name string) *corev1.PersistentVolume {
	if v := s.given[name]; v != nil {
		return v
	}
	return lookup[*corev1.PersistentVolume](s.volumes, name)
}

func (s *storage) VolumesOf(class string) []*corev1.PersistentVolume {
	all, _ := s.volumes.ByIndex(byClass, class)
	list := make([]*corev1.PersistentVolume, len(all))
	for i, o := range all {
		list[i] = s.Volume(o.(*corev1.PersistentVolume).Name)
	}
	return list
}

func (s *storage) Class(name string) *storagev1.StorageClass {
	return lookup[*storagev1.StorageClass](s.classes, name)
}

func (s *storage) CSINode(name string) *storagev1.CSINode {
	return lookup[*storagev1.CSINode](s.nodes, name)
}

func (s *storage) Attachments(node string) []*storagev1.VolumeAttachment {
	return s.attachmentsBy(byNode, node)
}

func (s *storage) attachmentsBy(index, value string) []*storagev1.VolumeAttachment {
	all, _ := s.attachments.ByIndex(index, value)
	list := make([]*storagev1.VolumeAttachment, len(all))
	for i, o := range all {
		list[i] = o.(*storagev1.VolumeAttachment)
	}
	return list
}

func (s *storage) CSIDriver(name string) *storagev1.CSIDriver {
	return lookup[*storagev1.CSIDriver](s.drivers, name)
}

func (s *storage) Capacities() []*storagev1.CSIStorageCapacity {
	all := s.capacities.List()
	list := make([]*storagev1.CSIStorageCapacity, len(all))
	for i, o := range all {
		list[i] = o.(*storagev1.CSIStorageCapacity)
	}
	return list
}

// An attaching is a placed pod that waits for its volumes.
type attaching struct {
	*plugins.VolumePlan
	q     *queued
	pod   *corev1.Pod
	node  string
	seen  map[string]bool // claims seen with the node they were told
	timer *time.Timer
	began time.Time
}

// assume lays the plan over what is known.
func (s *storage) assume(plan *plugins.VolumePlan, node string) error {
	for i, b := range plan.Static {
		pv, dirty, err := volume.GetBindVolumeToClaim(b.Volume, b.Claim)
		if err != nil {
			return fmt.Errorf("volume %s: %w", b.Volume.Name, err)
		}
		if dirty {
			s.given[pv.Name] = pv
		}
		plan.Static[i].Volume = pv
	}
	for _, c := range plan.Provision {
		s.selected[c.Namespace+"/"+c.Name] = node
	}
	return nil
}

// forget takes the plan off again.
func (s *storage) forget(plan *plugins.VolumePlan) {
	for _, b := range plan.Static {
		delete(s.given, b.Volume.Name)
	}
	for _, c := range plan.Provision {
		delete(s.selected, c.Namespace+"/"+c.Name)
	}
}

// bindVolumes writes the plan; the pod is bound when its claims are.
func (s *term) bindVolumes(ctx context.Context, a *attaching) {
	err := s.writePlan(ctx, a)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attachings[a] = struct{}{}
	if err != nil {
		s.attached(ctx, a, fmt.Errorf("binding volumes: %w", err))
		return
	}
	a.timer = run.AfterFunc("scheduler: volume wait", volumeBindTimeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, still := s.attachings[a]; still {
			s.attached(ctx, a, errors.New("binding volumes: context deadline exceeded"))
		}
	})
	s.checkVolumes(ctx, a)
}

func (s *term) writePlan(ctx context.Context, a *attaching) error {
	patch := func(meta metav1.Object, annotations map[string]string, spec map[string]any) []byte {
		m := map[string]any{"metadata": map[string]any{
			"uid": meta.GetUID(), "resourceVersion": meta.GetResourceVersion(), "annotations": annotations,
		}}
		if spec != nil {
			m["spec"] = spec
		}
		raw, _ := json.Marshal(m) // of maps and strings
		return raw
	}
	for _, b := range a.Static {
		raw := patch(b.Volume, b.Volume.Annotations, map[string]any{"claimRef": b.Volume.Spec.ClaimRef})
		if _, err := s.client.CoreV1().PersistentVolumes().Patch(ctx, b.Volume.Name, types.MergePatchType, raw, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	for _, c := range a.Provision {
		if c.Annotations[volume.AnnSelectedNode] == a.node {
			continue
		}
		raw := patch(c, map[string]string{volume.AnnSelectedNode: a.node}, nil)
		if _, err := s.client.CoreV1().PersistentVolumeClaims(c.Namespace).Patch(ctx, c.Name, types.MergePatchType, raw, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// checkVolumes goes on with the pod when its volumes are there, or gives up.
func (s *term) checkVolumes(ctx context.Context, a *attaching) {
	if s.assumed[a.q.Pod] != a.q {
		s.attached(ctx, a, nil) // deleted meanwhile
		return
	}
	done := true
	claim := func(c *corev1.PersistentVolumeClaim, provision bool) error {
		key := c.Namespace + "/" + c.Name
		now := lookup[*corev1.PersistentVolumeClaim](s.storage.claims, key)
		if now == nil {
			return fmt.Errorf("binding volumes: persistentvolumeclaim %q not found", c.Name)
		}
		if provision {
			selected := now.Annotations[volume.AnnSelectedNode] == a.node
			if !selected && a.seen[key] {
				return fmt.Errorf("binding volumes: provisioning failed for PVC %q", c.Name)
			}
			a.seen[key] = a.seen[key] || selected
		}
		if _, complete := now.Annotations[volume.AnnBindCompleted]; !complete || now.Spec.VolumeName == "" {
			done = false
		}
		return nil
	}
	var err error
	for _, b := range a.Static {
		err = errors.Join(err, claim(b.Claim, false))
	}
	for _, c := range a.Provision {
		err = errors.Join(err, claim(c, true))
	}
	if err != nil || done {
		s.attached(ctx, a, err)
	}
}

// attached ends the wait for volumes.
func (s *term) attached(ctx context.Context, a *attaching, err error) {
	delete(s.attachings, a)
	s.observe.attached(a, err)
	if a.timer != nil {
		a.timer.Stop()
	}
	s.storage.forget(a.VolumePlan)
	switch {
	case s.assumed[a.q.Pod] != a.q:
	case err != nil:
		s.bindFailed(ctx, a.q, a.node, fmt.Errorf("running PreBind plugin %q: %w", "VolumeBinding", err), false)
	default:
		s.writes.do(s.ctx, a.pod.UID, func(ctx context.Context) { s.bind(ctx, a.q, a.pod, a.node) })
	}
}

// storageChanged requeues the pods that a change of storage may help. Of an
// object that is gone, old is nil and gone true.
func (s *term) storageChanged(old, obj any, gone bool, now time.Time) (event string) {
	s.touchUsers(obj)
	if _, attached := obj.(*storagev1.VolumeAttachment); attached && !gone {
		return "" // makes no room
	}
	did := verb(old)
	if gone {
		did = "Delete"
	}
	e := &framework.Event{Action: framework.VolumeChanged, Storage: storageKind(obj) + did, Stored: obj, StoredBefore: old, Gone: gone}
	e.Claim, _ = obj.(*corev1.PersistentVolumeClaim)
	for a := range s.attachings {
		s.checkVolumes(s.ctx, a)
	}
	s.happened(e, now)
	return e.Storage
}

// touchUsers notes on which nodes what counts as attached may have changed.
func (s *term) touchUsers(obj any) {
	touch := func(name string) {
		if n := s.cluster.Node(name); n != nil {
			s.cluster.Touch(n)
		}
	}
	switch o := obj.(type) {
	case *corev1.PersistentVolumeClaim:
		s.cluster.TouchUsers(o.Namespace, o.Name)
	case *corev1.PersistentVolume:
		if ref := o.Spec.ClaimRef; ref != nil {
			s.cluster.TouchUsers(ref.Namespace, ref.Name)
		}
		for _, va := range s.storage.attachmentsBy(byVolume, o.Name) {
			touch(va.Spec.NodeName)
		}
	case *storagev1.VolumeAttachment:
		touch(o.Spec.NodeName)
	case *storagev1.CSINode:
		touch(o.Name)
	case *storagev1.StorageClass:
		for _, n := range s.cluster.Nodes {
			if n != nil {
				s.cluster.Touch(n)
			}
		}
	}
}

// storageKind is a kind of storage as upstream's events name it.
func storageKind(obj any) string {
	switch obj.(type) {
	case *corev1.PersistentVolumeClaim:
		return "PersistentVolumeClaim"
	case *corev1.PersistentVolume:
		return "PersistentVolume"
	case *storagev1.StorageClass:
		return "storage.k8s.io/StorageClass"
	case *storagev1.CSINode:
		return "storage.k8s.io/CSINode"
	case *storagev1.CSIDriver:
		return "storage.k8s.io/CSIDriver"
	case *storagev1.VolumeAttachment:
		return "storage.k8s.io/VolumeAttachment"
	default:
		return "storage.k8s.io/CSIStorageCapacity"
	}
}
