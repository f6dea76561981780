package watchcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"knarr/controlplane/apiserver/storage"
	"knarr/internal/run"
)

// An UnreadableError is a value in the store that cannot be decrypted or
// decoded.
type UnreadableError struct {
	Key      string // in the store
	Revision int64
	Sealed   bool // it cannot be decrypted
	err      error
}

func (e *UnreadableError) Error() string { return e.err.Error() }
func (e *UnreadableError) Unwrap() error { return e.err }

// A PartialError says that a list or a watch would not show all there is.
type PartialError struct {
	Kind   string
	Faults []*UnreadableError // in the order of their keys
	Since  time.Time          // when the first of the kind was found
}

// Sealed says that what stands for all cannot be decrypted.
func (e *PartialError) Sealed() bool { return e.Faults[0].Sealed }

func (e *PartialError) Error() string {
	first := e.Faults[0]
	if !first.Sealed {
		return first.Error()
	}
	return fmt.Sprintf("unable to transform key %q: %v", first.Key, first.err)
}

// faults are the unreadable values of a resource. They are never changed.
type faults struct {
	all   map[string]*UnreadableError
	keys  []string
	since time.Time
}

// read makes the record of a value from the store.
func (c *codec) read(key string, kv storage.KV) (*Record, *UnreadableError) {
	if kv.Err != nil {
		return nil, &UnreadableError{Key: kv.Key, Revision: kv.Revision, Sealed: true, err: kv.Err}
	}
	rec, err := c.record(key, kv.Value, kv.Revision)
	if err != nil {
		return nil, &UnreadableError{Key: kv.Key, Revision: kv.Revision, err: err}
	}
	return rec, nil
}

// replace shows a resource that was read anew, but for what of it is unreadable.
// Nobody may see what is left and take it for everything.
func (r *Resource) replace(ctx context.Context, t *tree, rev int64, found []*UnreadableError) {
	all := r.faultsOf(ctx, found)
	if len(all) > 0 {
		r.setFaults(all)
		r.reset(t, rev)
		return
	}
	r.reset(t, rev)
	r.setFaults(nil)
}

// resetUnreadable drops the values that the store delivered and that cannot be
// decoded. All watches end, so that clients list again and see the error.
func (r *Resource) resetUnreadable(ctx context.Context, rev int64) {
	all := r.faultsOf(ctx, r.broken)
	r.broken = nil
	if f := r.faults.Load(); f != nil {
		for key, e := range f.all {
			if all[key] == nil {
				all[key] = e
			}
		}
	}
	r.setFaults(all)
	r.reset(r.head, rev)
}

func (r *Resource) faultsOf(ctx context.Context, found []*UnreadableError) map[string]*UnreadableError {
	all := map[string]*UnreadableError{}
	for _, f := range found {
		all[f.Key[len(Root)+len(r.codec.prefix)+1:]] = f
		slog.ErrorContext(ctx, "unreadable object in the store", "key", f.Key, "err", f.err)
	}
	return all
}

func (r *Resource) setFaults(all map[string]*UnreadableError) {
	if len(all) == 0 {
		r.faults.Store(nil)
		return
	}
	since := time.Now()
	if f := r.faults.Load(); f != nil {
		since = f.since
	}
	r.faults.Store(&faults{all, slices.Sorted(maps.Keys(all)), since})
	r.cache.faulty.Store(true)
}

// readable forgets a fault that a later change has done away with.
func (r *Resource) readable(key string) {
	f := r.faults.Load()
	if f == nil || f.all[key] == nil {
		return
	}
	all := maps.Clone(f.all)
	delete(all, key)
	r.setFaults(all)
}

// CheckReadable says that everything of the kind can be read.
func (r *Resource) CheckReadable() error { return r.checkReadable("", "") }

// checkReadable says that everything in a scope can be read.
func (r *Resource) checkReadable(namespace, name string) error {
	if _, p := r.unreadableIn(namespace, name, ""); p != nil {
		return p
	}
	return nil
}

// unreadableIn is what cannot be read in a scope after a key, and where the first of it
// is.
func (r *Resource) unreadableIn(namespace, name, after string) (first string, p *PartialError) {
	f := r.faults.Load()
	if f == nil {
		return "", nil
	}
	for _, key := range f.keys {
		if key <= after || !inScope(key, namespace, name) {
			continue
		}
		if p == nil {
			first, p = key, &PartialError{Kind: r.kind.GVK().Kind, Since: f.since}
		}
		p.Faults = append(p.Faults, f.all[key])
	}
	return first, p
}

// Reread looks anew at what could not be read: a key may be there again.
func (c *Cache) Reread() {
	select {
	case c.reread <- struct{}{}:
	default:
	}
}

// rereader looks at unreadable values again: what was in their way may have been
// outside of this process. It looks beside the applier, which nothing slow may
// hold up.
type rereader struct {
	c     *Cache
	wait  time.Duration
	timer <-chan time.Time
	done  chan struct{} // closed at the end of a look; nil when there is none
}

const (
	minRereadDelay = time.Second
	maxRereadDelay = 30 * time.Second
)

// due ticks while there are such values.
func (l *rereader) due() <-chan time.Time {
	if l.timer == nil && l.done == nil && l.c.faulty.Load() {
		l.wait = min(max(2*l.wait, minRereadDelay), maxRereadDelay)
		l.timer = time.After(l.wait)
	}
	return l.timer
}

// begin starts a look, unless one is under way.
func (l *rereader) begin(ctx context.Context) {
	if l.done != nil {
		return
	}
	l.timer = nil
	l.c.faulty.Store(false)
	done := make(chan struct{})
	l.done = done
	run.Go("watch cache: read again", func() {
		defer close(done)
		for _, r := range l.c.tables.Load().prefixes {
			if !l.c.restore(ctx, r) {
				l.c.faulty.Store(true)
			}
		}
	})
}

// ended is after a look.
func (l *rereader) ended() {
	l.done = nil
	if !l.c.faulty.Load() {
		l.wait = 0
	}
}

// end waits for a look whose context has ended.
func (l *rereader) end() {
	if l.done != nil {
		<-l.done
	}
}

// restore has a resource read anew when it can be, and reports whether nothing of it
// is unreadable.
func (c *Cache) restore(ctx context.Context, r *Resource) bool {
	f := r.faults.Load()
	if f == nil {
		return true
	}
	_, err := r.Fetch(ctx, f.keys[0])
	if unreadable := (*UnreadableError)(nil); errors.As(err, &unreadable) || ctx.Err() != nil {
		return false
	}
	a := &addition{r, make(chan error, 1)}
	select {
	case c.additions <- a:
	case <-ctx.Done():
		return false
	}
	select {
	case err = <-a.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		slog.WarnContext(ctx, "read anew what could not be read", "err", err)
	}
	return err == nil && r.faults.Load() == nil
}

// Discard removes a value that cannot be read. ErrNotFound when there is none.
func (r *Resource) Discard(ctx context.Context, key string, which *UnreadableError) error {
	rev, current, ok, err := r.cache.store.Delete(ctx, r.path(key), which.Revision)
	switch {
	case err != nil:
		return err
	case !ok && current == nil:
		return ErrNotFound
	case !ok:
		return ErrConflict
	}
	r.seen(ctx, rev)
	return nil
}
