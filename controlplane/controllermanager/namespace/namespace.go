// Package namespace is the namespace-controller. It reads Namespaces, what
// discovery lists and the metadata of all that a namespace being deleted
// holds; it deletes that content, writes the Namespace's conditions and takes
// its finalizer away.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
	"knarr/internal/run"
)

// Name is the controller's.
const Name = "namespace-controller"

var podsResource = corev1.SchemeGroupVersion.WithResource("pods")

// parallel is how many resources of one namespace are emptied at once.
const parallel = 16

type reconciler struct {
	namespaces cache.Indexer
	client     kubernetes.Interface
	metadata   metadata.Interface
	witnesses  witnesses
	held       held
}

// New returns the controller; its keys are namespaces.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, meta metadata.Interface) *controller.Controller[string] {
	namespaces, pods := f.Core().V1().Namespaces().Informer(), f.Core().V1().Pods().Informer()
	r := &reconciler{namespaces: namespaces.GetIndexer(), client: client, metadata: meta}
	return &controller.Controller[string]{
		Name:       Name,
		Workers:    10,
		RetryDelay: [2]time.Duration{0, time.Minute}, // upstream's: what holds it may be gone any time
		Sources: []controller.Source[string]{
			{Informer: namespaces, Keys: func(o metav1.Object) []string {
				if o.GetDeletionTimestamp() == nil {
					return nil
				}
				return []string{o.GetName()}
			}},
			// The last pod to go lets the rest be deleted.
			{Informer: pods, Keys: r.emptied(pods.GetIndexer())},
		},
		Reconcile: r.reconcile,
	}
}

// emptied names the pod's namespace when it is going and has no pod any more.
func (r *reconciler) emptied(pods cache.Indexer) func(metav1.Object) []string {
	return func(o metav1.Object) []string {
		ns, ok, err := r.namespaces.GetByKey(o.GetNamespace())
		if err != nil || !ok || ns.(*corev1.Namespace).DeletionTimestamp == nil {
			return nil
		}
		if r.witnesses.remain(pods, o.GetNamespace()) {
			return nil
		}
		return []string{o.GetNamespace()}
	}
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	cached, ok, err := r.namespaces.GetByKey(name)
	if err != nil {
		return 0, err
	}
	if !ok {
		r.held.forget(name)
		return 0, nil
	}
	ns := cached.(*corev1.Namespace)
	if ns.DeletionTimestamp == nil || len(ns.Spec.Finalizers) == 0 {
		return 0, nil
	}
	api := r.client.CoreV1().Namespaces()
	if ns.Status.Phase != corev1.NamespaceTerminating {
		ns = ns.DeepCopy()
		ns.Status.Phase = corev1.NamespaceTerminating
		if ns, err = api.UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil {
			return 0, ignoreNotFound(err)
		}
	}
	found, err := r.empty(ctx, ns)
	conditions := found.conditions(err, time.Now())
	if next, changed := withConditions(ns, conditions); changed && (found.remain() || found.err() != nil || err != nil) {
		if next, err := api.UpdateStatus(ctx, next, metav1.UpdateOptions{}); err == nil {
			ns = next
		} else if !apierrors.IsConflict(err) {
			return 0, ignoreNotFound(err)
		}
	}
	if err := errors.Join(err, found.err()); err != nil {
		return 0, err
	}
	if found.remain() {
		return found.wait(ns.DeletionTimestamp.Time, time.Now()), nil
	}
	r.held.forget(name)
	return 0, r.finalize(ctx, ns)
}

// finalize takes this controller's finalizer away: the server then removes the
// namespace.
func (r *reconciler) finalize(ctx context.Context, ns *corev1.Namespace) error {
	api := r.client.CoreV1().Namespaces()
	for {
		next := ns.DeepCopy()
		next.Spec.Finalizers = slices.DeleteFunc(next.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
		_, err := api.Finalize(ctx, next, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			return ignoreNotFound(err)
		}
		fresh, err := api.Get(ctx, ns.Name, metav1.GetOptions{})
		if err != nil {
			return ignoreNotFound(err)
		}
		if fresh.UID != ns.UID {
			return nil
		}
		ns = fresh
	}
}

// empty deletes what was left at the last look, and all content when that is gone.
func (r *reconciler) empty(ctx context.Context, ns *corev1.Namespace) (content, error) {
	now := time.Now()
	if left := r.held.resources(ns.Name, ns.UID, now); len(left) > 0 {
		if found := r.emptyAll(ctx, ns.Name, left); found.remain() || found.err() != nil {
			return found, nil
		}
	}
	resources, err := r.discover()
	found := r.emptyAll(ctx, ns.Name, resources)
	if err == nil && found.err() == nil {
		r.held.note(ns.Name, ns.UID, now, slices.DeleteFunc(resources, func(res resource) bool { return found[res.GroupVersionResource].remaining == 0 }))
	}
	return found, err
}

// emptyAll deletes the content of these resources: pods first, so that what they
// use outlives them, then the rest at once.
func (r *reconciler) emptyAll(ctx context.Context, namespace string, resources []resource) content {
	found := content{}
	if slices.ContainsFunc(resources, func(res resource) bool { return res.GroupVersionResource == podsResource }) {
		one := r.emptyResource(ctx, namespace, resource{podsResource, true})
		if one.err != nil {
			one.err = fmt.Errorf("failed to delete pods for namespace: %s, err: %w", namespace, one.err)
		}
		found[podsResource] = one
		if one.remaining > 0 {
			return found
		}
	}
	resources = slices.DeleteFunc(slices.Clone(resources), func(res resource) bool { return res.GroupVersionResource == podsResource })
	all := make([]one, len(resources))
	errs := run.Each("namespace: empty a resource", parallel, len(resources), func(i int) error {
		all[i] = r.emptyResource(ctx, namespace, resources[i])
		return nil
	})
	for i, res := range resources {
		if errs[i] != nil { // it panicked: nobody knows what is left
			all[i] = one{err: errs[i]}
		}
		found[res.GroupVersionResource] = all[i]
	}
	return found
}

type resource struct {
	schema.GroupVersionResource
	collection bool // can be deleted as a whole
}

// discover lists the namespaced resources that can be deleted.
func (r *reconciler) discover() ([]resource, error) {
	lists, err := discovery.ServerPreferredNamespacedResources(r.client.Discovery())
	var out []resource
	for _, list := range lists {
		gv, perr := schema.ParseGroupVersion(list.GroupVersion)
		if perr != nil {
			continue
		}
		for _, res := range list.APIResources {
			if slices.Contains(res.Verbs, "delete") && slices.Contains(res.Verbs, "list") {
				out = append(out, resource{gv.WithResource(res.Name), slices.Contains(res.Verbs, "deletecollection")})
			}
		}
	}
	return out, err
}

// emptyResource deletes the objects of one resource and counts what stays.
func (r *reconciler) emptyResource(ctx context.Context, namespace string, res resource) one {
	api := r.metadata.Resource(res.GroupVersionResource).Namespace(namespace)
	before, err := api.List(ctx, metav1.ListOptions{})
	if unserved(err) {
		return one{}
	}
	if err != nil {
		return one{err: err}
	}
	if len(before.Items) == 0 {
		return one{}
	}
	if !slices.ContainsFunc(before.Items, func(o metav1.PartialObjectMetadata) bool { return o.DeletionTimestamp == nil }) {
		return left(namespace, res, before.Items)
	}
	opts := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	var deleteErr error
	if res.collection {
		deleteErr = api.DeleteCollection(ctx, opts, metav1.ListOptions{})
	} else {
		for _, item := range before.Items {
			if err := api.Delete(ctx, item.Name, opts); ignoreNotFound(err) != nil && !apierrors.IsMethodNotSupported(err) {
				deleteErr = err
			}
		}
	}
	if deleteErr != nil && !unserved(deleteErr) {
		return one{err: deleteErr}
	}
	after, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return one{err: err}
	}
	return left(namespace, res, after.Items)
}

// left counts what stays although it has been deleted.
func left(namespace string, res resource, items []metav1.PartialObjectMetadata) (out one) {
	out.remaining, out.finalizers = len(items), map[string]int{}
	for _, item := range items {
		for _, f := range item.Finalizers {
			out.finalizers[f]++
		}
		if g := item.DeletionGracePeriodSeconds; g != nil {
			out.grace = max(out.grace, *g)
		}
	}
	if out.remaining > 0 && out.grace == 0 && len(out.finalizers) == 0 {
		out.err = fmt.Errorf("unexpected items still remain in namespace: %s for gvr: %v", namespace, res.GroupVersionResource)
	}
	return out
}

func unserved(err error) bool {
	return apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
