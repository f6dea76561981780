package watchcache

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/storage"
)

// A write in flight: when it comes back in the store's stream, the record made
// of it is the one the writer returns, so that the object is decoded by nobody.
type write struct {
	value, message []byte
	object         registry.Object

	mu     sync.Mutex
	record *Record
}

// at makes the record once.
func (w *write) at(r *Resource, key string, rev int64) (*Record, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.record != nil && w.record.Revision == rev {
		return w.record, nil
	}
	message, err := r.codec.versioned(w.message, rev)
	if err != nil {
		return nil, err
	}
	rec := &Record{Key: key, Revision: rev, codec: r.codec, message: message}
	if w.record == nil {
		w.object.SetResourceVersion(formatRevision(rev))
		rec.object.Store(&w.object)
		r.codec.budget.spend(rec, len(message)*r.codec.weight)
		w.record = rec
	}
	return rec, nil
}

// adopt makes the record of a change from the stream, that of the write that
// caused it when it was ours.
func (r *Resource) adopt(key string, kv storage.KV) (*Record, *UnreadableError) {
	var mine *write
	r.pendingMu.Lock()
	for _, w := range r.pending[key] {
		if bytes.Equal(w.value, kv.Value) {
			mine = w
			break
		}
	}
	r.pendingMu.Unlock()
	if mine == nil {
		return r.codec.read(key, kv)
	}
	r.done(key, mine)
	rec, err := mine.at(r, key, kv.Revision)
	if err != nil {
		return nil, &UnreadableError{Key: kv.Key, Revision: kv.Revision, err: err}
	}
	return rec, nil
}

// done forgets a write that came back, or never will.
func (r *Resource) done(key string, w *write) {
	r.pendingMu.Lock()
	defer r.pendingMu.Unlock()
	left := slices.DeleteFunc(r.pending[key], func(p *write) bool { return p == w })
	if len(left) == 0 {
		delete(r.pending, key)
		return
	}
	r.pending[key] = left
}

// put stores obj under key if the key's last revision is expect.
func (r *Resource) put(ctx context.Context, key string, obj registry.Object, expect int64, same func(value []byte) bool) (rec *Record, unchanged, ok bool, err error) {
	if r.codec.form != customForm {
		// Decoded objects in records have no kind and apiVersion.
		obj.GetObjectKind().SetGroupVersionKind(noKind)
	}
	value, message, err := r.codec.encode(obj)
	if err != nil {
		return nil, false, false, err
	}
	if same != nil && same(message) {
		return nil, true, true, nil
	}
	w := &write{value: value, message: message, object: obj}
	r.pendingMu.Lock()
	r.pending[key] = append(r.pending[key], w)
	r.pendingMu.Unlock()
	rev, _, ok, err := r.cache.store.Put(ctx, r.path(key), value, expect, r.kind.Storage().TTL)
	if err != nil || !ok {
		r.done(key, w)
		return nil, false, false, err
	}
	rec, err = w.at(r, key, rev)
	r.seen(ctx, rev)
	return rec, false, true, err
}

// seen waits until the write at rev can be read from the cache, so that whoever
// acts on its answer finds admission and authorisation knowing of it. A cache
// that is far behind holds nobody up for long: the write is done.
func (r *Resource) seen(ctx context.Context, rev int64) { _ = r.cache.wait(ctx, rev, catchUp) }

func (r *Resource) path(key string) string { return Root + r.codec.prefix + "/" + key }

// Create stores a new object, which belongs to the cache afterwards. ErrExists
// when there is one under key.
func (r *Resource) Create(ctx context.Context, key string, obj registry.Object) (*Record, error) {
	rec, _, ok, err := r.put(ctx, key, obj, 0, nil)
	if err == nil && !ok {
		err = ErrExists
	}
	return rec, err
}

// Update replaces what expect stands for by obj, which belongs to the cache
// afterwards. ErrConflict when somebody was faster, ErrNotFound when expect is
// gone. An object that did not change is not written: expect comes back.
func (r *Resource) Update(ctx context.Context, key string, expect *Record, obj registry.Object) (*Record, error) {
	rec, unchanged, ok, err := r.put(ctx, key, obj, expect.Revision, func(message []byte) bool {
		return r.codec.same(message, expect) && !r.stale(ctx, key)
	})
	switch {
	case err != nil:
		return nil, err
	case unchanged:
		// It only did not change if expect is still what the store holds.
		if now, err := r.Get(ctx, key, ""); err != nil || now.Revision != expect.Revision {
			if err == nil {
				err = ErrConflict
			}
			return nil, err
		}
		return expect, nil
	case !ok:
		return nil, r.lost(ctx, key)
	}
	return rec, nil
}

// stale says that what the store holds is to be written anew although nothing
// of it changes: its encryption is no longer the one wanted.
func (r *Resource) stale(ctx context.Context, key string) bool {
	store, ok := r.cache.store.(interface {
		Stale(ctx context.Context, key string) (bool, error)
	})
	if !ok {
		return false
	}
	stale, err := store.Stale(ctx, r.path(key))
	return err == nil && stale
}

// lost says why a compare failed.
func (r *Resource) lost(ctx context.Context, key string) error {
	kv, _, err := r.cache.store.Get(ctx, r.path(key))
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", r.path(key), err)
	case kv == nil:
		return ErrNotFound
	}
	return ErrConflict
}

// Delete removes what expect stands for. The record returned carries the
// revision of the delete. ErrConflict when the object has changed, ErrNotFound
// when it is gone.
func (r *Resource) Delete(ctx context.Context, key string, expect *Record) (*Record, error) {
	rev, current, ok, err := r.cache.store.Delete(ctx, r.path(key), expect.Revision)
	switch {
	case err != nil:
		return nil, err
	case !ok && current == nil:
		return nil, ErrNotFound
	case !ok:
		return nil, ErrConflict
	}
	r.seen(ctx, rev)
	return expect.at(rev)
}

// Fetch reads key straight from the store, for a retry after ErrConflict.
// ErrNotFound when there is none.
func (r *Resource) Fetch(ctx context.Context, key string) (*Record, error) {
	kv, _, err := r.cache.store.Get(ctx, r.path(key))
	switch {
	case err != nil:
		return nil, err
	case kv == nil:
		return nil, ErrNotFound
	}
	if rec := r.Peek(key); rec != nil && rec.Revision == kv.Revision {
		return rec, nil
	}
	rec, unreadable := r.codec.read(key, *kv)
	if unreadable != nil {
		return nil, unreadable
	}
	return rec, nil
}
