package localstorage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"

	"knarr/addons/localstorage/disk"
	"knarr/addons/localstorage/driver"
	"knarr/internal/controller"
	"knarr/internal/localpath"
)

// A provisioner does what external-provisioner and external-resizer do for other
// drivers, for one node.
type provisioner struct {
	client                               kubernetes.Interface
	calls                                csipb.ControllerClient
	store                                *disk.Store
	node                                 *corev1.Node
	claims, volumes, classes, capacities cache.SharedIndexInformer
	events                               record.EventRecorder
	changed                              chan struct{} // volumes came, grew or went
	refusals                             refusals
	copies, removals                     shares // what is under way of them
}

// workers is how many claims are worked on at once, and how many copies are made and
// volumes removed besides: both take as long as there are files, which is up to pods.
const workers = 4

// controllers are the loops, by name.
func (p *provisioner) controllers() map[string]func(context.Context) error {
	ofClaims := []controller.Source[cache.ObjectName]{
		controller.Self(p.claims), {Informer: p.volumes, Keys: claimOf}, {Informer: p.classes, Keys: p.waiting},
	}
	claims := func(copy bool) func(context.Context, cache.ObjectName) (time.Duration, error) {
		return controller.Existing(p.claims.GetStore(), func(ctx context.Context, c *corev1.PersistentVolumeClaim) (time.Duration, error) {
			if isCopy(c) != copy {
				return 0, nil
			}
			return p.claim(ctx, c)
		})
	}
	main := &controller.Controller[cache.ObjectName]{Name: "local-path-provisioner", Workers: workers, Sources: ofClaims, Reconcile: claims(false)}
	copies := &controller.Controller[cache.ObjectName]{
		Name: "local-path-copies", Workers: workers, Sources: ofClaims, Reconcile: claims(true),
		Feeds: []func(context.Context, func(), func(cache.ObjectName)) error{p.copies.feed},
	}
	releases := &controller.Controller[cache.ObjectName]{
		Name: "local-path-releases", Workers: workers, Sources: []controller.Source[cache.ObjectName]{controller.Self(p.volumes)},
		Reconcile: controller.Existing(p.volumes.GetStore(), p.release),
		Feeds:     []func(context.Context, func(), func(cache.ObjectName)) error{p.removals.feed},
	}
	capacity := &controller.Controller[string]{
		Name:      "local-path-capacity",
		Sources:   []controller.Source[string]{{Informer: p.classes, Keys: names}, {Informer: p.capacities, Keys: classOf}},
		Feeds:     []func(context.Context, func(), func(string)) error{p.feedCapacities},
		Reconcile: p.capacity,
	}
	orphans := &controller.Controller[string]{
		Name: "local-path-orphans", Sources: []controller.Source[string]{{Informer: p.volumes}}, Feeds: []func(context.Context, func(), func(string)) error{feedOnce},
		Reconcile: func(ctx context.Context, _ string) (time.Duration, error) { return orphanPeriod, p.orphans(ctx) },
	}
	return map[string]func(context.Context) error{main.Name: main.Run, copies.Name: copies.Run, releases.Name: releases.Run, capacity.Name: capacity.Run, orphans.Name: orphans.Run}
}

// claimOf is the key of a volume's claim, which may be larger than the volume.
func claimOf(o metav1.Object) []cache.ObjectName {
	if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil && v.Spec.CSI != nil && v.Spec.CSI.Driver == driver.Name {
		return []cache.ObjectName{{Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name}}
	}
	return nil
}

// isCopy says whether a claim wants a volume that is a copy.
func isCopy(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeName == "" && c.Spec.DataSourceRef != nil && copied(c.Spec.DataSourceRef)
}

// waiting are the claims that have no volume yet and may be waiting for a class.
func (p *provisioner) waiting(o metav1.Object) (keys []cache.ObjectName) {
	class, ok := o.(*storagev1.StorageClass)
	if !ok || !localpath.Serves(class.Provisioner) {
		return nil
	}
	for _, o := range p.claims.GetStore().List() {
		if c := o.(*corev1.PersistentVolumeClaim); c.Spec.VolumeName == "" && volume.GetPersistentVolumeClaimClass(c) == class.Name {
			keys = append(keys, cache.MetaObjectToName(c))
		}
	}
	return keys
}

func (p *provisioner) class(name string) *storagev1.StorageClass {
	o, _, _ := p.classes.GetStore().GetByKey(name)
	class, _ := o.(*storagev1.StorageClass)
	return class
}

func (p *provisioner) volume(name string) *corev1.PersistentVolume {
	o, _, _ := p.volumes.GetStore().GetByKey(name)
	v, _ := o.(*corev1.PersistentVolume)
	return v
}

// claim looks at one claim: it wants a volume, or a larger one, or neither.
func (p *provisioner) claim(ctx context.Context, c *corev1.PersistentVolumeClaim) (time.Duration, error) {
	if c.Spec.VolumeName != "" {
		return p.resize(ctx, c)
	}
	class := p.class(volume.GetPersistentVolumeClaimClass(c))
	todo := decide(c, class, p.node)
	if todo != elect {
		p.refusals.forget(c.UID)
	}
	switch todo {
	case elect:
		return p.elect(ctx, c, class)
	case provide:
		if p.volume(volumeName(c)) != nil {
			return 0, nil // it waits to be bound
		}
		return p.provide(ctx, c, class)
	}
	return 0, nil
}

// elect takes a claim that may be on any node, if this one has room for it. Of
// several nodes the first one's write is the one that holds. If no node takes it, one
// says why.
func (p *provisioner) elect(ctx context.Context, c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (time.Duration, error) {
	if wait := time.Until(c.CreationTimestamp.Add(electionDelay(c, p.node.Name))); wait > 0 {
		return wait, nil
	}
	from, err := p.source(ctx, c)
	if status.Code(err) == codes.ResourceExhausted {
		return p.refuse(ctx, c, class, err, sourcePeriod, time.Now()) // if that node does not take the claim
	}
	free, err := p.ask(ctx, class)
	if status.Code(err) == codes.InvalidArgument {
		return p.refuse(ctx, c, class, err, 0, time.Now())
	}
	if err != nil {
		return 0, err
	}
	if needs := p.needs(c, class, from); needs > free {
		return p.refuse(ctx, c, class, status.Errorf(codes.ResourceExhausted, "not enough free space: %d bytes are asked for, %d can be had on node %s, and no other node took the claim",
			needs, free, p.node.Name), gracePeriod, time.Now())
	}
	err = selectNode(ctx, p.client, c, &p.node.Name)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return 0, nil // its event follows
	}
	return 0, err
}

// needs is how much a claim's volume takes on this node. Where that cannot be said,
// making the volume says why.
func (p *provisioner) needs(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, from *csipb.VolumeContentSource) int64 {
	asked := c.Spec.Resources.Requests[corev1.ResourceStorage]
	r := disk.Request{Size: bytesOf(asked), Limit: disk.Limit(class.Parameters[driver.ParamLimit]), Block: isBlock(c.Spec.VolumeMode)}
	switch {
	case from.GetVolume() != nil:
		r.From = from.GetVolume().VolumeId
	case from.GetSnapshot() != nil:
		r.From, r.Snapshot = from.GetSnapshot().SnapshotId, true
	}
	size, err := p.store.SizeOf(r)
	if err != nil {
		return bytesOf(asked)
	}
	return size
}

// selectNode writes which node a claim's volume is to be on, nil for none.
func selectNode(ctx context.Context, client kubernetes.Interface, c *corev1.PersistentVolumeClaim, node *string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": c.UID, "resourceVersion": c.ResourceVersion, "annotations": map[string]*string{volume.AnnSelectedNode: node},
	}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().PersistentVolumeClaims(c.Namespace).Patch(ctx, c.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// provide makes the volume of a claim of this node.
func (p *provisioner) provide(ctx context.Context, c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (time.Duration, error) {
	if ref := c.Spec.DataSourceRef; ref != nil && !copied(ref) {
		p.events.Event(c, corev1.EventTypeNormal, "Provisioning", "Assuming an external populator will provision the volume")
		return 0, nil
	}
	if isCopy(c) {
		if !p.copies.take(c.Namespace, cache.MetaObjectToName(c)) {
			return 0, nil // it is looked at again when another of the namespace has ended
		}
		defer p.copies.give(c.Namespace)
	}
	p.events.Eventf(c, corev1.EventTypeNormal, "Provisioning", "External provisioner is provisioning volume for claim %q", c.Namespace+"/"+c.Name)
	r := createRequest(c, class, map[string]string{corev1.LabelHostname: p.node.Labels[corev1.LabelHostname]})
	v, err := p.create(ctx, c, r)
	if err != nil {
		return 0, p.failed(ctx, c, class, err)
	}
	pv := volumeFor(c, class, v, r.VolumeCapabilities[0].GetMount().GetFsType())
	if _, err := p.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return 0, fmt.Errorf("save volume %s: %w", pv.Name, err) // the next try finds the volume made
	}
	if err := p.store.Save(v.VolumeId); err != nil {
		slog.WarnContext(ctx, "note that a volume is saved; it is looked at later", "volume", v.VolumeId, "err", err)
	}
	limit := v.VolumeContext[driver.ParamLimit]
	p.events.Eventf(c, corev1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume %s: %s", pv.Name, limitSentence(limit))
	if limit == string(disk.None) && class.Parameters[driver.ParamLimit] != limit {
		p.events.Eventf(c, corev1.EventTypeWarning, "SizeNotEnforced", "The volume can take more than %s: %s", c.Spec.Resources.Requests.Storage(), notEnforced(p.node.Name, r.VolumeContentSource != nil, p.store.Images()))
	}
	p.kick()
	return 0, nil
}

// create calls the driver.
func (p *provisioner) create(ctx context.Context, c *corev1.PersistentVolumeClaim, r *csipb.CreateVolumeRequest) (_ *csipb.Volume, err error) {
	if why := unsupported(c); why != "" {
		return nil, errors.New(why)
	}
	if r.VolumeContentSource, err = p.source(ctx, c); err != nil {
		return nil, err
	}
	limit := callTime
	if r.VolumeContentSource != nil {
		limit = copyTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := p.calls.CreateVolume(ctx, r)
	return answer.GetVolume(), err
}

// failed says so on the claim. A node without room gives the claim back, so that
// its pod can go elsewhere.
func (p *provisioner) failed(ctx context.Context, c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, err error) error {
	p.events.Event(c, corev1.EventTypeWarning, provisioningFailed, failure(class, err))
	if status.Code(err) == codes.ResourceExhausted {
		p.kick() // the capacity that the scheduler went by was too large
		if gone := selectNode(ctx, p.client, c, nil); gone != nil && !apierrors.IsNotFound(gone) {
			return gone
		}
		return nil
	}
	return err
}

const provisioningFailed = "ProvisioningFailed"

// failure is the event's message, in external-provisioner's words. Pure.
func failure(class *storagev1.StorageClass, why error) string {
	return fmt.Sprintf("failed to provision volume with StorageClass %q: %s", class.Name, why)
}

// kick has capacities published anew.
func (p *provisioner) kick() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}
