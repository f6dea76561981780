package localstorage

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"

	"knarr/addons/localstorage/driver"
	"knarr/internal/controller"
	"knarr/internal/informer"
	"knarr/internal/localpath"
)

// lostNodes speaks for nodes that are not there any more: their provisioners did what is
// done about their claims and volumes, and nobody else does.
type lostNodes struct {
	client                  kubernetes.Interface
	nodes, classes          cache.Store
	claims, volumes         cache.Store
	events                  record.EventRecorder
	grace                   time.Duration
	missedClaims, missedPVs map[cache.ObjectName]missed
}

// lostGrace is for how long a node may be missing: one that joins anew is not there
// for a moment.
const lostGrace = time.Minute

// A missed is an object whose node is not there.
type missed struct {
	object          types.UID
	node            string
	since, reported time.Time
}

// byNode is the index of claims by the node that they were given to, and of volumes by the
// host name of theirs.
const byNode = "node"

func indexed(of func(any) string) cache.Indexers {
	return cache.Indexers{byNode: func(o any) ([]string, error) {
		if node := of(o); node != "" {
			return []string{node}, nil
		}
		return nil, nil
	}}
}

// concerned are the objects of a node that changed.
func concerned(inf cache.SharedIndexInformer, name func(metav1.Object) string) func(metav1.Object) []cache.ObjectName {
	return func(node metav1.Object) (keys []cache.ObjectName) {
		found, _ := inf.GetIndexer().ByIndex(byNode, name(node))
		for _, o := range found {
			keys = append(keys, cache.MetaObjectToName(o.(metav1.Object)))
		}
		return keys
	}
}

func nameOf(o metav1.Object) string     { return o.GetName() }
func hostNameOf(o metav1.Object) string { return o.GetLabels()[corev1.LabelHostname] }

// keepLost looks after the claims and volumes of nodes that are gone, until ctx ends.
func keepLost(ctx context.Context, client kubernetes.Interface, grace time.Duration) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slimNode))
	claims, volumes := f.Core().V1().PersistentVolumeClaims().Informer(), f.Core().V1().PersistentVolumes().Informer()
	nodes, classes := f.Core().V1().Nodes().Informer(), f.Storage().V1().StorageClasses().Informer()
	if err := informer.Index(claims, indexed(func(o any) string { return givenTo(o.(*corev1.PersistentVolumeClaim)) })); err != nil {
		return err
	}
	if err := informer.Index(volumes, indexed(func(o any) string { return hostOf(o.(*corev1.PersistentVolume)) })); err != nil {
		return err
	}
	l := &lostNodes{
		client: client, nodes: nodes.GetStore(), classes: classes.GetStore(), claims: claims.GetStore(), volumes: volumes.GetStore(),
		events: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: driver.Name}),
		grace:  grace, missedClaims: map[cache.ObjectName]missed{}, missedPVs: map[cache.ObjectName]missed{},
	}
	ofClaims := &controller.Controller[cache.ObjectName]{Name: "local-path-lost-claims", Reconcile: l.claim, Sources: []controller.Source[cache.ObjectName]{
		controller.Self(claims), {Informer: classes}, {Informer: nodes, Keys: concerned(claims, nameOf)}}}
	ofVolumes := &controller.Controller[cache.ObjectName]{Name: "local-path-lost-volumes", Reconcile: l.volume, Sources: []controller.Source[cache.ObjectName]{
		controller.Self(volumes), {Informer: nodes, Keys: concerned(volumes, hostNameOf)}}}
	return runLoops(ctx, map[string]func(context.Context) error{ofClaims.Name: ofClaims.Run, ofVolumes.Name: ofVolumes.Run}, f)
}

// slimNode leaves of Nodes what they are called, and of others what withoutManagers does.
func slimNode(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
			Labels: map[string]string{corev1.LabelHostname: n.Labels[corev1.LabelHostname]}}}, nil
	}
	return withoutManagers(o)
}

// givenTo is the node that a claim waits for, "" for none. Pure.
func givenTo(c *corev1.PersistentVolumeClaim) string {
	if c.Spec.VolumeName != "" || c.DeletionTimestamp != nil {
		return ""
	}
	return c.Annotations[volume.AnnSelectedNode]
}

// overdue notes that an object's node is not there, and says how long it may still be so;
// 0 when that has been long enough.
func (l *lostNodes) overdue(all map[cache.ObjectName]missed, key cache.ObjectName, object types.UID, node string, now time.Time) time.Duration {
	m, ok := all[key]
	if !ok || m.object != object || m.node != node {
		m = missed{object: object, node: node, since: now}
		all[key] = m
	}
	return max(0, l.grace-now.Sub(m.since))
}

// claim takes a claim from a node that is not there, so that it is given to another.
func (l *lostNodes) claim(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	o, _, _ := l.claims.GetByKey(key.String())
	c, _ := o.(*corev1.PersistentVolumeClaim)
	node, class := "", (*storagev1.StorageClass)(nil)
	if c != nil {
		node = givenTo(c)
		o, _, _ := l.classes.GetByKey(volume.GetPersistentVolumeClaimClass(c))
		class, _ = o.(*storagev1.StorageClass)
	}
	_, there, _ := l.nodes.GetByKey(node)
	if node == "" || there || class == nil || !localpath.Serves(class.Provisioner) {
		delete(l.missedClaims, key)
		return 0, nil
	}
	if wait := l.overdue(l.missedClaims, key, c.UID, node, time.Now()); wait > 0 {
		return wait, nil
	}
	_, err := l.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err == nil {
		return 0, nil // its event follows
	}
	if !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("look for node %s: %w", node, err)
	}
	err = selectNode(ctx, l.client, c, nil)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return 0, nil // its event follows
	}
	if err != nil {
		return 0, fmt.Errorf("take claim %s from node %s: %w", key, node, err)
	}
	delete(l.missedClaims, key)
	l.events.Event(c, corev1.EventTypeWarning, provisioningFailed,
		failure(class, fmt.Errorf("node %q, which it was given to, is not there any more; it is given to another", node)))
	return 0, nil
}

// undeletable says whether a volume is to be deleted, which its node alone can. Pure.
func undeletable(v *corev1.PersistentVolume) bool {
	return releasing(v) == remove || v.DeletionTimestamp != nil && v.Status.Phase != corev1.VolumeBound &&
		localpath.Serves(v.Annotations[volume.AnnDynamicallyProvisioned]) && slices.Contains(v.Finalizers, volume.PVDeletionProtectionFinalizer)
}

// volume says of a volume that is to be deleted that its node is gone, for as long as that
// is so: its data may come back with the node, so the object stays.
func (l *lostNodes) volume(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	o, _, _ := l.volumes.GetByKey(key.String())
	v, _ := o.(*corev1.PersistentVolume)
	host := ""
	if v != nil && undeletable(v) {
		host = hostOf(v)
	}
	if host == "" || l.named(host) {
		delete(l.missedPVs, key)
		return 0, nil
	}
	now := time.Now()
	if wait := l.overdue(l.missedPVs, key, v.UID, host, now); wait > 0 {
		return wait, nil
	}
	m := l.missedPVs[key]
	if wait := refusalPeriod - now.Sub(m.reported); wait > 0 {
		return wait, nil
	}
	found, err := l.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: labels.Set{corev1.LabelHostname: host}.String(), Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("look for node %s: %w", host, err)
	}
	if len(found.Items) > 0 {
		return 0, nil // its event follows
	}
	m.reported = now
	l.missedPVs[key] = m
	l.events.Eventf(v, corev1.EventTypeWarning, "VolumeFailedDelete",
		"node %q is not there any more, and the data of the volume with it: if it does not come back, delete the volume and remove its finalizer %s", host, volume.PVDeletionProtectionFinalizer)
	return refusalPeriod, nil
}

// named says whether a node has that host name.
func (l *lostNodes) named(host string) bool {
	return slices.ContainsFunc(l.nodes.List(), func(o any) bool { return hostNameOf(o.(metav1.Object)) == host })
}
