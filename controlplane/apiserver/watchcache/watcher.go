package watchcache

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

// burst bounds how many deliveries one Poll adds.
const burst = 512

// A Watcher is a cursor in a log. It is used by one goroutine.
type Watcher struct {
	resource *Resource
	group    *group
	matcher  *matcher
	c        chan struct{}

	initial  []*Record // state still to be delivered
	initEnd  bool      // a bookmark is due after initial
	cursor   int64
	from     int64 // events up to this revision are not for us
	revision int64 // everything up to it was delivered
	epoch    int64
	stop     sync.Once
}

// Watch starts a watcher. It must be stopped. This is how it gets its place in a log
// without a gap and without an event twice:
//
//  1. plan decides where the watch starts: after a revision, now, or with the present
//     state. For the latter two it waits until the cache is as new as that demands.
//  2. The resource's lock is taken. The applier holds it from the first event that it
//     logs to the state that it stores, so the state and the end of the logs are of
//     one revision meanwhile.
//  3. A start before the oldest event of the log is refused: the client lists again.
//  4. join takes the log of the narrowest group that has all the query can want: an
//     indexed field's value, an object, a namespace, or everything. A new group's log
//     is filled with those events of the main log that concern it, so that it reaches
//     back as far.
//  5. The watcher is added to the group: all later events signal it.
//  6. Its cursor is set: to the end of the log, with the objects of the state to be
//     delivered first if the request wants them, or to the first event after start.
//  7. The lock is released, and a first signal makes the caller Poll: it gets the
//     state, a bookmark if that is wanted, and then the events from the cursor on.
//  8. When the log has been trimmed beyond the cursor, or everything was read anew,
//     Poll returns an error and the watch is over.
func (r *Resource) Watch(ctx context.Context, q WatchQuery) (*Watcher, error) {
	start, initial, marked, err := r.plan(ctx, q)
	if err != nil {
		return nil, err
	}
	if err := r.checkReadable(q.Namespace, q.Name); err != nil {
		return nil, err
	}
	query := &Query{Namespace: q.Namespace, Name: q.Name, Labels: q.Labels, Fields: q.Fields, FieldSet: q.FieldSet, Object: q.Object}
	w := &Watcher{resource: r, matcher: r.matcher(query), c: make(chan struct{}, 1), initEnd: marked, epoch: r.epoch.Load()}

	r.mu.Lock()
	if !initial && start >= 0 && start < r.oldest {
		oldest := r.oldest
		r.mu.Unlock()
		return nil, &TooOldError{start, oldest}
	}
	st, rev := r.snapshot()
	w.group = r.join(query)
	w.group.add(w)
	switch {
	case initial:
		w.cursor, w.from, w.revision = w.group.end(), rev, rev
		w.initial = scan(st.tree, query)
	case start < 0: // from now on
		w.cursor, w.from, w.revision = w.group.end(), rev, rev
	default:
		w.cursor, w.from, w.revision = w.group.base, start, start
		events := w.group.events
		for len(events) > 0 && events[0].revision <= start {
			events = events[1:]
			w.cursor++
		}
	}
	r.mu.Unlock()
	w.signal()
	return w, nil
}

// plan decides where a watch starts: after revision start (-1: now), or with
// the present state, marked by a bookmark or not.
func (r *Resource) plan(ctx context.Context, q WatchQuery) (start int64, initial, marked bool, err error) {
	send := q.SendInitialEvents
	switch {
	case send != nil && *send:
		return 0, true, true, r.cache.waitFor(ctx, q.ResourceVersion)
	case q.ResourceVersion == "" || q.ResourceVersion == "0":
		return -1, send == nil, false, r.cache.waitFor(ctx, q.ResourceVersion)
	}
	start, err = parseRevision(q.ResourceVersion)
	if err == nil {
		select {
		case <-r.cache.ready:
		default:
			err = ErrNotReady
		}
	}
	return start, false, false, err
}

// join finds or makes the narrowest group that shows all a query can want.
func (r *Resource) join(q *Query) *group {
	name := ""
	if r.index != "" && q.Fields != nil {
		if v, ok := q.Fields.RequiresExactMatch(r.index); ok && v != "" {
			name = "f:" + v
		}
	}
	switch {
	case name != "":
	case q.Name != "" && (q.Namespace != "" || !r.kind.Namespaced()):
		name = "o:" + q.Name
		if q.Namespace != "" {
			name = "o:" + q.Namespace + "/" + q.Name
		}
	case q.Namespace != "":
		name = "n:" + q.Namespace
	default:
		return r.main
	}
	g := r.groups[name]
	if g == nil {
		g = newGroup(name)
		for _, e := range r.main.events {
			if r.concerns(e, name) {
				g.append(e)
			}
		}
		r.groups[name] = g
		if name[0] == 'f' {
			r.byField++
		}
	}
	g.users++
	return g
}

// concerns reports whether an old event belongs into a new group's log.
func (r *Resource) concerns(e *event, name string) bool {
	rec := e.now
	if rec == nil {
		rec = e.prev
	}
	switch value := name[2:]; name[0] {
	case 'o':
		return rec.Key == value
	case 'n':
		return inScope(rec.Key, value, "")
	default:
		return r.fieldOf(e.now) == value || r.fieldOf(e.prev) == value
	}
}

// Stop ends the watcher and frees its place.
func (w *Watcher) Stop() {
	w.stop.Do(func() {
		w.group.remove(w)
		if w.group.name == "" {
			return
		}
		r := w.resource
		r.mu.Lock()
		defer r.mu.Unlock()
		if w.group.users--; w.group.users == 0 {
			delete(r.groups, w.group.name)
			if w.group.name[0] == 'f' {
				r.byField--
			}
		}
	})
}

// C signals that Poll may have something.
func (w *Watcher) C() <-chan struct{} { return w.c }

func (w *Watcher) signal() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// Revision is what a bookmark may say: everything up to it was delivered.
func (w *Watcher) Revision() int64 { return w.revision }

// Poll appends what there is to deliver, without waiting, at most some hundred
// deliveries at a time; C signals again when there may be more. A watcher that
// fell behind the log gets a TooOldError and is done.
func (w *Watcher) Poll(buf []Delivery) ([]Delivery, error) {
	if w.resource.epoch.Load() != w.epoch {
		return buf, ErrEnded
	}
	room := burst
	for len(w.initial) > 0 && room > 0 {
		rec := w.initial[0]
		w.initial = w.initial[1:]
		ok, err := w.matcher.match(rec)
		if err != nil {
			return buf, err
		}
		if ok {
			buf = append(buf, Delivery{Type: watch.Added, Record: rec, Revision: rec.Revision})
			room--
		}
	}
	if len(w.initial) > 0 {
		w.signal()
		return buf, nil
	}
	if w.initEnd {
		w.initEnd = false
		buf = append(buf, Delivery{Type: watch.Bookmark, Revision: w.from, InitialEnd: true})
	}
	r := w.resource
	published := r.cache.revision.Load()
	r.mu.RLock()
	base, events, oldest := w.group.base, w.group.events, r.oldest
	r.mu.RUnlock()
	if w.cursor < base {
		return buf, &TooOldError{w.revision, oldest}
	}
	events = events[w.cursor-base:]
	for _, e := range events {
		if room == 0 {
			w.signal()
			return buf, nil
		}
		w.cursor++
		if e.revision <= w.from {
			continue
		}
		d, ok, err := w.show(e)
		if err != nil {
			return buf, err
		}
		if ok {
			buf = append(buf, d)
			room--
		}
		w.revision = e.revision
	}
	w.revision = max(w.revision, published)
	return buf, nil
}

// show turns an event into what this watcher sees of it: an object that starts
// to match its selectors is ADDED, one that ceases to is DELETED.
func (w *Watcher) show(e *event) (Delivery, bool, error) {
	d := Delivery{Revision: e.revision, event: e}
	if w.matcher.all {
		rec := e.now
		if rec == nil {
			rec = e.gone
		}
		if !inScope(rec.Key, w.matcher.query.Namespace, w.matcher.query.Name) {
			return d, false, nil
		}
		d.Type, d.Record = e.kind(), rec
		return d, true, nil
	}
	is, err := w.matcher.match(e.now)
	if err != nil {
		return d, false, err
	}
	was, err := w.matcher.match(e.prev)
	if err != nil {
		return d, false, err
	}
	switch {
	case is && was:
		d.Type, d.Record = watch.Modified, e.now
	case is:
		d.Type, d.Record = watch.Added, e.now
	case was && e.gone != nil:
		d.Type, d.Record = watch.Deleted, e.gone
	case was: // the last state that matched, at the revision it ceased to
		d.Type = watch.Deleted
		d.Record, err = e.prev.at(e.revision)
	default:
		return d, false, nil
	}
	return d, err == nil, err
}
