package plugin

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// lookup is the object under key. One that the cache does not have may have
// been made a moment ago, so then the store is asked; its absence is a 404.
func lookup[T registry.Object](ctx context.Context, cache *watchcache.Cache, gvr schema.GroupVersionResource, key, name string) (obj T, err error) {
	if r := cache.Resource(gvr); r != nil {
		if obj, ok := watchcache.Read[T](r, key); ok {
			return obj, nil
		}
	}
	return stored[T](ctx, cache, gvr, key, name)
}

// stored is the object under key as the store has it now.
func stored[T registry.Object](ctx context.Context, cache *watchcache.Cache, gvr schema.GroupVersionResource, key, name string) (obj T, err error) {
	r := cache.Resource(gvr)
	if r == nil {
		return obj, apierrors.NewNotFound(gvr.GroupResource(), name)
	}
	rec, err := r.Get(ctx, key, "")
	switch {
	case errors.Is(err, watchcache.ErrNotFound):
		return obj, apierrors.NewNotFound(gvr.GroupResource(), name)
	case err != nil:
		return obj, apierrors.NewInternalError(err)
	}
	o, err := rec.Object()
	if err != nil {
		return obj, apierrors.NewInternalError(err)
	}
	return o.(T), nil
}
