// Package ownwrites keeps a controller from deciding on caches that do not yet
// show what it wrote itself. It reads informer caches and writes nothing.
package ownwrites

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// A Log remembers, per key, the newest revision a controller wrote to each
// resource and the objects it deleted, until the caches show both. Whatever it
// waits for comes with an event, so a caller just returns and is called again.
type Log struct {
	mu      sync.Mutex
	pending map[cache.ObjectName]*writes
}

type writes struct {
	revisions map[cache.Store]string
	deleted   map[types.UID]deletion
}

type deletion struct {
	store  cache.Store
	key    string
	wholly bool // on its way out is not enough
}

// New returns an empty Log.
func New() *Log { return &Log{pending: map[cache.ObjectName]*writes{}} }

func (l *Log) of(key cache.ObjectName) *writes {
	w := l.pending[key]
	if w == nil {
		w = &writes{map[cache.Store]string{}, map[types.UID]deletion{}}
		l.pending[key] = w
	}
	return w
}

// Reconcile makes a reconcile function of fn, which gets the object of the key
// from store once the caches show what was written for it. The events that show
// it call again; the minute is for an event that was lost.
func Reconcile[T any](l *Log, store cache.Store, fn func(ctx context.Context, key cache.ObjectName, obj T) (again time.Duration, err error)) func(context.Context, cache.ObjectName) (time.Duration, error) {
	return func(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
		obj, ok, err := store.GetByKey(key.String())
		if err != nil || !ok {
			l.Forget(key)
			return 0, err
		}
		if !l.Seen(key) {
			return time.Minute, nil
		}
		return fn(ctx, key, obj.(T))
	}
}

// Wrote records that key's reconciliation stored obj, which store will show.
func (l *Log) Wrote(key cache.ObjectName, store cache.Store, obj metav1.Object) {
	rv := obj.GetResourceVersion()
	if rv == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.of(key)
	if have, ok := w.revisions[store]; ok && reached(have, rv) {
		return
	}
	w.revisions[store] = rv
}

// Deleted records that key's reconciliation deleted obj.
func (l *Log) Deleted(key cache.ObjectName, store cache.Store, obj metav1.Object) {
	l.removed(key, store, obj, false)
}

// Removed records that obj went for good, as by the loss of its last finalizer.
func (l *Log) Removed(key cache.ObjectName, store cache.Store, obj metav1.Object) {
	l.removed(key, store, obj, true)
}

func (l *Log) removed(key cache.ObjectName, store cache.Store, obj metav1.Object, wholly bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(key).deleted[obj.GetUID()] = deletion{store, cache.MetaObjectToName(obj).String(), wholly}
}

// Forget drops what is remembered of key.
func (l *Log) Forget(key cache.ObjectName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pending, key)
}

// Seen reports whether the caches show all that was written for key.
func (l *Log) Seen(key cache.ObjectName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.pending[key]
	if w == nil {
		return true
	}
	for store, rv := range w.revisions {
		if !reached(store.LastStoreSyncResourceVersion(), rv) {
			return false
		}
		delete(w.revisions, store)
	}
	for uid, d := range w.deleted {
		obj, ok, err := d.store.GetByKey(d.key)
		if m, is := obj.(metav1.Object); err == nil && ok && is && m.GetUID() == uid && (d.wholly || m.GetDeletionTimestamp() == nil) {
			return false
		}
		delete(w.deleted, uid)
	}
	delete(l.pending, key)
	return true
}

// reached reports whether a cache at revision have shows revision want.
func reached(have, want string) bool {
	n, err := resourceversion.CompareResourceVersion(have, want)
	return err == nil && n >= 0
}
