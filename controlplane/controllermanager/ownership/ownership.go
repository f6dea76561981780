// Package ownership decides which objects belong to a controller's object, by
// owner reference and selector, and adopts or releases those whose reference
// does not say so. It reads what it is given and writes through the patch
// function it is given.
package ownership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/controller"
	"knarr/internal/informer"
)

// A Claim is one owner's claim to objects of type T.
type Claim[T metav1.Object] struct {
	Owner    metav1.Object
	Kind     schema.GroupVersionKind
	Selector labels.Selector
	// Fresh reads the owner from the server: a cached owner may be gone, and
	// a deleted owner must not adopt.
	Fresh func(ctx context.Context) (metav1.Object, error)
	// Patch changes an object's owner references.
	Patch func(ctx context.Context, obj T, kind types.PatchType, patch []byte) (T, error)
	// Adoptable, when set, refuses objects that match but must not be adopted.
	Adoptable func(obj T) bool
	// Finalizers are given to what is adopted.
	Finalizers []string
}

// A verdict is what to do about one object.
type verdict int

const (
	ignore verdict = iota
	keep
	adopt
	release
)

// judge decides about obj from the caches alone.
func (c *Claim[T]) judge(obj T) verdict {
	matches := c.Selector.Matches(labels.Set(obj.GetLabels()))
	ref := metav1.GetControllerOfNoCopy(obj)
	switch {
	case ref != nil && ref.UID != c.Owner.GetUID():
		return ignore
	case ref != nil && matches:
		return keep
	case ref != nil && c.Owner.GetDeletionTimestamp() == nil:
		return release
	case ref != nil, c.Owner.GetDeletionTimestamp() != nil, !matches, obj.GetDeletionTimestamp() != nil,
		obj.GetNamespace() != c.Owner.GetNamespace(),
		c.Adoptable != nil && !c.Adoptable(obj):
		return ignore
	}
	return adopt
}

// Objects gives those of all that belong to the owner, after adopting and
// releasing what must be.
func (c *Claim[T]) Objects(ctx context.Context, all []T) ([]T, error) {
	var mine []T
	var errs []error
	mayAdopt := sync.OnceValue(func() error { return c.mayAdopt(ctx) })
	for _, obj := range all {
		switch c.judge(obj) {
		case keep:
			mine = append(mine, obj)
		case adopt:
			if err := mayAdopt(); err != nil {
				errs = append(errs, fmt.Errorf("can't adopt %T %v/%v (%v): %w", obj, obj.GetNamespace(), obj.GetName(), obj.GetUID(), err))
				continue
			}
			adopted, err := c.Patch(ctx, obj, types.StrategicMergePatchType, c.adoption(obj))
			switch {
			case err == nil:
				mine = append(mine, adopted)
			case !apierrors.IsNotFound(err):
				errs = append(errs, err)
			}
		case release:
			_, err := c.Patch(ctx, obj, types.StrategicMergePatchType, c.releasing(obj))
			// Invalid: the reference, or the object itself, was replaced.
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
				errs = append(errs, err)
			}
		}
	}
	return mine, errors.Join(errs...)
}

func (c *Claim[T]) mayAdopt(ctx context.Context) error {
	fresh, err := c.Fresh(ctx)
	if err != nil {
		return err
	}
	if fresh.GetUID() != c.Owner.GetUID() {
		return fmt.Errorf("original %s %s/%s is gone: got uid %s, wanted %s", c.Kind.Kind,
			c.Owner.GetNamespace(), c.Owner.GetName(), fresh.GetUID(), c.Owner.GetUID())
	}
	if t := fresh.GetDeletionTimestamp(); t != nil {
		return fmt.Errorf("%s/%s has just been deleted at %v", fresh.GetNamespace(), fresh.GetName(), t)
	}
	return nil
}

func (c *Claim[T]) adoption(obj T) []byte {
	meta := map[string]any{
		"uid":             obj.GetUID(),
		"ownerReferences": []metav1.OwnerReference{*metav1.NewControllerRef(c.Owner, c.Kind)},
	}
	if len(c.Finalizers) > 0 {
		meta["finalizers"] = c.Finalizers
	}
	return patch(meta)
}

func (c *Claim[T]) releasing(obj T) []byte {
	meta := map[string]any{
		"uid":             obj.GetUID(),
		"ownerReferences": []map[string]any{{"$patch": "delete", "uid": c.Owner.GetUID()}},
	}
	if len(c.Finalizers) > 0 {
		meta["$deleteFromPrimitiveList/finalizers"] = c.Finalizers
	}
	return patch(meta)
}

func patch(meta map[string]any) []byte {
	b, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		panic(err) // strings and references always marshal
	}
	return b
}

// byController is the index that Of and Orphans read.
const byController = "knarr.controller"

// Index makes inf able to answer Of and Orphans. It must be called before the
// informer starts; once is enough.
func Index(inf cache.SharedIndexInformer) error {
	if _, ok := inf.GetIndexer().GetIndexers()[byController]; ok {
		return nil
	}
	return informer.Index(inf, cache.Indexers{byController: func(obj any) ([]string, error) {
		m, ok := obj.(metav1.Object)
		if !ok {
			return nil, fmt.Errorf("index %T by controller", obj)
		}
		if ref := metav1.GetControllerOfNoCopy(m); ref != nil {
			return []string{string(ref.UID)}, nil
		}
		return []string{m.GetNamespace() + "/"}, nil
	}})
}

// Of gives the objects that name owner as their controller; with orphans also
// those of its namespace that name none.
func Of[T metav1.Object](indexer cache.Indexer, owner metav1.Object, orphans bool) ([]T, error) {
	found, err := indexer.ByIndex(byController, string(owner.GetUID()))
	if err != nil {
		return nil, err
	}
	if orphans {
		more, err := indexer.ByIndex(byController, owner.GetNamespace()+"/")
		if err != nil {
			return nil, err
		}
		found = append(found[:len(found):len(found)], more...)
	}
	out := make([]T, 0, len(found))
	for _, o := range found {
		if m, ok := o.(T); ok {
			out = append(out, m)
		}
	}
	return out, nil
}

// Matching gives, for Source, the names of the cached owners in the namespace
// of an object with labels whose selector fits these.
func Matching(owners cache.Indexer, selectorOf func(owner any) *metav1.LabelSelector) func(metav1.Object) []cache.ObjectName {
	return func(o metav1.Object) []cache.ObjectName {
		if len(o.GetLabels()) == 0 {
			return nil
		}
		return MatchingAll(owners, o, selectorOf)
	}
}

// MatchingAll is Matching for one object, which may have no labels: selectors
// that ask only for the absence of labels fit it.
func MatchingAll(owners cache.Indexer, o metav1.Object, selectorOf func(owner any) *metav1.LabelSelector) (keys []cache.ObjectName) {
	found, err := owners.ByIndex(cache.NamespaceIndex, o.GetNamespace())
	if err != nil {
		return nil
	}
	have := o.GetLabels()
	for _, owner := range found {
		want := selectorOf(owner)
		if want == nil || !hasAll(have, want.MatchLabels) { // most differ in a label: no selector is built
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(want)
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(have)) {
			keys = append(keys, cache.MetaObjectToName(owner.(metav1.Object)))
		}
	}
	return keys
}

func hasAll(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Source yields the controlling owner of each object, if of that kind, and for
// objects without one the owners that matching names: they may adopt it.
func Source(inf cache.SharedIndexInformer, kind schema.GroupKind, matching func(metav1.Object) []cache.ObjectName) controller.Source[cache.ObjectName] {
	return controller.Source[cache.ObjectName]{Informer: inf, Keys: func(o metav1.Object) []cache.ObjectName {
		ref := metav1.GetControllerOfNoCopy(o)
		if ref == nil {
			if matching == nil || o.GetDeletionTimestamp() != nil {
				return nil
			}
			return matching(o)
		}
		if gv, err := schema.ParseGroupVersion(ref.APIVersion); err != nil || ref.Kind != kind.Kind || gv.Group != kind.Group {
			return nil
		}
		return []cache.ObjectName{cache.NewObjectName(o.GetNamespace(), ref.Name)}
	}}
}
