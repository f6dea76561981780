// Package garbagecollector is the garbage-collector-controller. It reads the
// metadata of every object that can be deleted, deletes those whose owners are
// gone, and takes owner references and its own finalizers away.
package garbagecollector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"

	"knarr/internal/controller"
	"knarr/internal/run"
)

// Name is the controller's.
const Name = "garbage-collector-controller"

// workers is how many objects are decided about at once.
const workers = 20

type collector struct {
	graph    *graph
	kinds    *kinds
	mu       sync.Mutex // guards monitors
	monitors monitors
	// postponed are dependents of owners that no watch shows, though the server
	// does not say that they are gone.
	postponed  map[types.UID]struct{}
	postponing sync.Mutex // guards postponed
	metadata   metadata.Interface
	discovery  discovery.DiscoveryInterface
	events     record.EventRecorder
	informers  informers.SharedInformerFactory
	// shared are resources whose informers run anyway.
	shared map[schema.GroupVersionResource]bool
}

// New returns the controller; its keys are UIDs. Of the resources shared it
// reads the informers of f, all others it watches itself.
func New(f informers.SharedInformerFactory, meta metadata.Interface, disco discovery.DiscoveryInterface, events record.EventRecorder, shared []schema.GroupVersionResource) (*controller.Controller[types.UID], error) {
	c := &collector{
		kinds: &kinds{}, monitors: monitors{}, postponed: map[types.UID]struct{}{}, metadata: meta, discovery: disco, events: events,
		informers: f, shared: map[schema.GroupVersionResource]bool{},
	}
	c.graph = newGraph(c.kinds)
	for _, res := range shared {
		if _, err := f.ForResource(res); err != nil { // asks for it before the informers start
			return nil, fmt.Errorf("informer of %v: %w", res, err)
		}
		c.shared[res] = true
	}
	return &controller.Controller[types.UID]{
		Name: Name, Workers: workers,
		Feeds:     []func(context.Context, func(), func(types.UID)) error{c.watch},
		Reconcile: c.reconcile,
	}, nil
}

func (c *collector) reconcile(ctx context.Context, uid types.UID) (again time.Duration, err error) {
	d := c.graph.decide(uid)
	if len(d.unknown) > 0 {
		learned, err := c.verify(ctx, d)
		if errors.Is(err, errNotServed) {
			slog.DebugContext(ctx, "owner is not known", "controller", Name, "resource", d.res, "namespace", d.namespace, "name", d.name, "err", err)
			c.postpone(uid)
			return rediscover, nil // nothing is decided while its API is not there
		}
		if err != nil {
			return 0, err
		}
		if learned {
			d = c.graph.decide(uid)
		}
		if len(d.unknown) > 0 { // they live, and perhaps no watch will ever show their end
			c.postpone(uid)
			again = rediscover
		}
	}
	for _, ref := range d.foreign {
		c.recordForeignOwner(d.view, ref)
	}
	if d.do == orphan || d.do == dropFinalizer {
		var settled bool
		if d, settled = c.decideSettled(uid); !settled {
			return settleWait, nil // a dependent may be out of sight for a moment
		}
	}
	err = c.act(ctx, d)
	if isAbsent(err) {
		return again, nil // its event is on the way
	}
	if err != nil && !apierrors.IsConflict(err) {
		err = fmt.Errorf("%s %s/%s: %w", d.res.Resource, d.namespace, d.name, err)
	}
	return again, err
}

// postpone has a dependent decided about anew after the next list of a resource,
// which may hold its owner.
func (c *collector) postpone(uid types.UID) {
	c.postponing.Lock()
	defer c.postponing.Unlock()
	c.postponed[uid] = struct{}{}
}

// resume adds the dependents that were postponed.
func (c *collector) resume(add func(types.UID)) {
	c.postponing.Lock()
	defer c.postponing.Unlock()
	for uid := range c.postponed {
		add(uid)
	}
	clear(c.postponed)
}

func (c *collector) act(ctx context.Context, d decision) error {
	switch d.do {
	case dropRefs:
		return c.patch(ctx, d.view, map[string]any{"ownerReferences": without(d.owners, d.refs)})
	case dropFinalizer:
		return c.unfinalize(ctx, d)
	case orphan:
		if err := c.orphan(ctx, d); err != nil {
			return err
		}
		return c.unfinalize(ctx, d)
	case remove:
		if d.unblock {
			// Two that wait for each other: this one stops waiting.
			return c.patch(ctx, d.view, map[string]any{"ownerReferences": unblocked(d.owners)})
		}
		return c.metadata.Resource(d.res).Namespace(d.namespace).Delete(ctx, d.name, metav1.DeleteOptions{
			PropagationPolicy: &d.policy,
			Preconditions:     &metav1.Preconditions{UID: &d.uid, ResourceVersion: &d.revision},
		})
	}
	return nil
}

// verify asks the server about owners that no watch shows: that a watch has
// ended, or that an API is not there for a while, says nothing of its objects. It
// reports whether the graph now knows more.
func (c *collector) verify(ctx context.Context, d decision) (learned bool, err error) {
	for _, ref := range d.unknown {
		res, namespaced, err := c.kinds.resource(ref)
		if errors.Is(err, errNotServed) && c.graph.wasDeleted(ref.UID) {
			// Its deletion was seen, and its whole kind went after it.
			c.graph.absent.Add(d.reference(ref), nil)
			learned = true
			continue
		}
		if err != nil {
			return false, err
		}
		if namespaced && d.namespace == "" {
			continue // cannot be; such an object is left alone
		}
		namespace := d.namespace
		if !namespaced {
			namespace = ""
		}
		owner, err := c.metadata.Resource(res).Namespace(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case isAbsent(err) || err == nil && owner.UID != ref.UID:
			c.graph.absent.Add(d.reference(ref), nil)
			learned = true
		case err != nil:
			return false, fmt.Errorf("get owner %s %s/%s: %w", ref.Kind, namespace, ref.Name, err)
		}
	}
	return learned, nil
}

// isAbsent says that err is the answer of a server that serves the resource and
// has no such object. One that does not serve it answers NotFound too, but in no
// Status of its own, which client-go notes as a cause.
func isAbsent(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name != "" && !slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool {
		return c.Type == metav1.CauseTypeUnexpectedServerResponse
	})
}

// patch changes the metadata of the object as the graph knows it: a newer one
// is a conflict, and decided about anew.
func (c *collector) patch(ctx context.Context, v view, change map[string]any) error {
	change["uid"], change["resourceVersion"] = v.uid, v.revision
	b, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return err
	}
	_, err = c.metadata.Resource(v.res).Namespace(v.namespace).Patch(ctx, v.name, types.MergePatchType, b, metav1.PatchOptions{})
	return err
}

func (c *collector) unfinalize(ctx context.Context, d decision) error {
	left := []string{}
	for _, f := range d.finalizers {
		if f != d.finalizer {
			left = append(left, f)
		}
	}
	return c.patch(ctx, d.view, map[string]any{"finalizers": left})
}

// orphan takes the references to the object out of its dependents.
func (c *collector) orphan(ctx context.Context, d decision) error {
	errs := run.Each("garbage collector: orphan", workers, len(d.dependents), func(i int) error {
		v := d.dependents[i]
		err := c.patch(ctx, v, map[string]any{"ownerReferences": without(v.owners, []types.UID{d.uid})})
		if isAbsent(err) {
			return nil
		}
		return err // also where its version is not served any more: it lives in another
	})
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	for _, err := range errs {
		if !apierrors.IsConflict(err) {
			return errors.Join(errs...)
		}
	}
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

func (c *collector) recordForeignOwner(v view, ref metav1.OwnerReference) {
	about := &corev1.ObjectReference{APIVersion: v.res.GroupVersion().String(), Kind: c.kinds.kind(v.res),
		Namespace: v.namespace, Name: v.name, UID: v.uid}
	c.events.Eventf(about, corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
		"ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
		ref.APIVersion, ref.Kind, v.namespace, ref.Name, ref.UID, v.namespace)
}

func without(refs []metav1.OwnerReference, uids []types.UID) []metav1.OwnerReference {
	gone := sets.New(uids...)
	left := []metav1.OwnerReference{}
	for _, ref := range refs {
		if !gone.Has(ref.UID) {
			left = append(left, ref)
		}
	}
	return left
}

func unblocked(refs []metav1.OwnerReference) []metav1.OwnerReference {
	out := make([]metav1.OwnerReference, len(refs))
	for i, ref := range refs {
		ref.BlockOwnerDeletion = new(false)
		out[i] = ref
	}
	return out
}
