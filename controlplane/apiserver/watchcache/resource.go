package watchcache

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/storage"
)

// tree keeps records in key order; copies share what they have in common.
type tree = btree.Map[string, *Record]

// indexed are the field labels, by resource, whose watchers form groups of
// their own, so that an event is shown only to those it may concern.
var indexed = map[string]string{"pods": "spec.nodeName"}

// A Resource is the cache of one resource.
type Resource struct {
	cache    *Cache
	kind     registry.Resource
	codec    *codec
	jsonHead []byte // `{"kind":"Pod","apiVersion":"v1",`
	index    string // field label with groups of its own, or ""

	state atomic.Pointer[state]

	mu      sync.RWMutex // guards what follows and the order of state and logs
	head    *tree        // the applier's own, copied into state
	indexes map[string]*valueIndex
	oldest  int64 // the log has everything after this revision
	bytes   int
	main    *group
	groups  map[string]*group
	byField int // groups of the indexed field

	wakeSet map[*group]struct{} // the applier's: groups with news in this batch

	pendingMu sync.Mutex
	pending   map[string][]*write

	broken []*UnreadableError // the applier's: what came unreadable in this batch

	size   atomic.Int64 // of all messages together
	epoch  atomic.Int64 // watchers of an earlier one are to end
	faults atomic.Pointer[faults]

	sharedFrames sharedFrames // large frames under way

	large     [framedLarge]*event // the newest
	nextLarge int
}

// state is a snapshot: all objects as of a revision.
type state struct {
	tree     *tree
	revision int64 // of the last change
	indexes  map[string]indexView
}

func newResource(c *Cache, kind registry.Resource) *Resource {
	r := &Resource{
		cache: c, kind: kind, codec: newCodec(kind, c.budget),
		index:   indexed[kind.Storage().Prefix],
		head:    &tree{},
		main:    newGroup(""),
		groups:  map[string]*group{},
		wakeSet: map[*group]struct{}{},
		pending: map[string][]*write{},
	}
	apiVersion, name := kind.GVK().ToAPIVersionAndKind()
	r.jsonHead = []byte(`{"kind":"` + name + `","apiVersion":"` + apiVersion + `",`)
	r.state.Store(&state{tree: &tree{}})
	return r
}

// Kind is the kind stored.
func (r *Resource) Kind() registry.Resource { return r.kind }

// snapshot is everything as of the returned revision.
func (r *Resource) snapshot() (*state, int64) {
	rev := r.cache.revision.Load()
	st := r.state.Load()
	return st, max(rev, st.revision)
}

// reset replaces everything: the store was read anew at rev. Old watchers find
// their place in the log gone.
func (r *Resource) reset(t *tree, rev int64) {
	r.mu.Lock()
	r.head = t
	r.indexes = nil
	r.state.Store(&state{tree: t.Copy(), revision: rev})
	size := 0
	t.Scan(func(_ string, rec *Record) bool {
		size += len(rec.message)
		return true
	})
	r.size.Store(int64(size))
	r.oldest, r.bytes = rev, 0
	r.main.cut()
	for _, g := range r.groups {
		g.cut()
	}
	r.mu.Unlock()
	r.pendingMu.Lock()
	clear(r.pending)
	r.pendingMu.Unlock()
	r.main.wakeNow()
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, g := range r.groups {
		g.wakeNow()
	}
}

// apply publishes consecutive changes of this resource and reports whether there
// are any. Changes up to seen are known already.
func (r *Resource) apply(ctx context.Context, changes []storage.Event, seen int64) bool {
	now := time.Now()
	events := make([]*event, 0, len(changes))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ch := range changes {
		if ch.Revision <= seen {
			continue
		}
		_, key := r.cache.find(ch.Key)
		r.readable(key)
		prev, _ := r.head.Get(key)
		e := &event{revision: ch.Revision, at: now, prev: prev}
		if ch.Deleted {
			if prev == nil {
				continue
			}
			gone, err := prev.at(ch.Revision)
			if err != nil {
				slog.ErrorContext(ctx, "unreadable object", "key", ch.Key, "err", err)
				gone = prev
			}
			e.gone = gone
			r.head.Delete(key)
		} else {
			rec, err := r.adopt(key, ch.KV)
			if err != nil {
				r.broken = append(r.broken, err)
				r.head.Delete(key)
				continue
			}
			e.now = rec
			r.head.Set(key, rec)
		}
		events = append(events, e)
	}
	if len(events) == 0 {
		return r.broken != nil
	}
	for _, e := range events {
		r.log(e)
		r.size.Add(int64(e.growth()))
		if e.size() >= LargeSize {
			r.newestLarge(e)
		}
	}
	r.forgetFrames(len(events))
	r.trim(now)
	r.updateIndexes(events, now)
	r.state.Store(&state{r.head.Copy(), events[len(events)-1].revision, r.views()})
	return true
}

// log appends e to the main log and to the logs of the groups it concerns.
func (r *Resource) log(e *event) {
	r.main.append(e)
	r.wakeSet[r.main] = struct{}{}
	r.bytes += e.size()
	if len(r.groups) == 0 {
		return
	}
	show := func(name string) {
		if g := r.groups[name]; g != nil {
			g.append(e)
			r.wakeSet[g] = struct{}{}
		}
	}
	rec := e.now
	if rec == nil {
		rec = e.prev
	}
	show("o:" + rec.Key)
	if ns, _, ok := strings.Cut(rec.Key, "/"); ok {
		show("n:" + ns)
	}
	if r.byField == 0 {
		return
	}
	was, is := r.fieldOf(e.prev), r.fieldOf(e.now)
	show("f:" + is)
	if was != is {
		show("f:" + was)
	}
}

// fieldOf is the indexed field's value.
func (r *Resource) fieldOf(rec *Record) string {
	if rec == nil {
		return ""
	}
	value, err := rec.text(r.index)
	if err != nil {
		return ""
	}
	return string(value)
}

// The log is bounded in count, bytes and age; the newest keep events stay.
const (
	maxEvents = 8192
	maxBytes  = 16 << 20
	maxAge    = 5 * time.Minute
	keep      = 128
)

// framed is how many of the newest events keep their frames: of older ones they
// are made again for who comes late, and shared again. framedLarge is how many
// of large objects do; those of older ones are not kept.
const (
	framed      = 512
	framedLarge = 4
)

// forgetFrames drops those of the events that so many new ones made old.
func (r *Resource) forgetFrames(added int) {
	old := len(r.main.events) - framed
	for i := max(0, old-added); i < old; i++ {
		r.main.events[i].forgetFrames()
	}
}

// newestLarge has a large event keep its frames, in the place of an older one.
func (r *Resource) newestLarge(e *event) {
	if old := r.large[r.nextLarge]; old != nil {
		old.uncacheable.Store(true)
		old.forgetFrames()
	}
	r.large[r.nextLarge] = e
	r.nextLarge = (r.nextLarge + 1) % len(r.large)
}

// forgetOld forgets what is old of a log to which nothing may be added any more: after a
// burst of pods and their events it would keep 16 MB of each until the next.
func (r *Resource) forgetOld(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.trim(now) {
	}
}

// trim forgets the oldest events once the log is too long or old, a quarter at once, and
// says whether it was.
func (r *Resource) trim(now time.Time) bool {
	n := len(r.main.events)
	drop := 0
	if n > maxEvents || (r.bytes > maxBytes && n > keep) {
		drop = n / 4
	} else if n > keep && now.Sub(r.main.events[n/4].at) > maxAge {
		drop = n / 4
	}
	if drop == 0 {
		return false
	}
	for _, e := range r.main.events[:drop] {
		r.bytes -= e.size()
	}
	r.oldest = r.main.events[drop-1].revision
	r.main.drop(drop)
	for _, g := range r.groups {
		k := 0
		for k < len(g.events) && g.events[k].revision <= r.oldest {
			k++
		}
		g.drop(k)
	}
	return true
}

func (r *Resource) wake() {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for g := range r.wakeSet {
		g.wake()
		delete(r.wakeSet, g)
	}
}

// stateAt is the state as of an older revision, found by undoing what the log
// remembers; false when the log does not reach back to it.
func (r *Resource) stateAt(rev int64) (*state, bool) {
	st := r.state.Load()
	if st.revision <= rev {
		return st, true
	}
	r.mu.Lock() // copying a tree marks it
	defer r.mu.Unlock()
	if rev < r.oldest {
		return nil, false
	}
	t := r.head.Copy()
	for i := len(r.main.events) - 1; i >= 0; i-- {
		e := r.main.events[i]
		if e.revision <= rev {
			break
		}
		if e.prev != nil {
			t.Set(e.prev.Key, e.prev)
		} else {
			t.Delete(e.now.Key)
		}
	}
	return &state{tree: t, revision: rev}, true
}

// matcher decides whether a record is selected.
type matcher struct {
	kind     registry.Resource
	query    *Query
	fieldSet func(registry.Object) fields.Set
	object   func(*Record) (registry.Object, error)
	all      bool

	labels     labels.Selector // nil when it selects everything
	manyLabels bool            // more than manyTerms
	fields     fields.Selector // when records can tell without being decoded
}

func (r *Resource) matcher(q *Query) *matcher {
	m := &matcher{kind: r.kind, query: q, fieldSet: q.FieldSet, object: q.Object}
	m.all = (q.Labels == nil || q.Labels.Empty()) && (q.Fields == nil || q.Fields.Empty())
	if q.Labels != nil && !q.Labels.Empty() {
		m.labels = q.Labels
		terms, _ := q.Labels.Requirements()
		m.manyLabels = len(terms) > manyTerms
	}
	if m.fieldSet == nil {
		m.fieldSet = r.kind.FieldSet
		if q.Object == nil && q.Fields != nil && !q.Fields.Empty() && r.codec.readable(q.Fields) {
			m.fields = q.Fields
		}
	}
	if m.object == nil {
		m.object = (*Record).Object
	}
	return m
}

func (m *matcher) match(rec *Record) (bool, error) {
	if rec == nil {
		return false, nil
	}
	if !inScope(rec.Key, m.query.Namespace, m.query.Name) {
		return false, nil
	}
	if m.all {
		return true, nil
	}
	if m.labels != nil && m.query.Object == nil {
		l, err := rec.labelsOf()
		if err != nil {
			return false, err
		}
		if w, ok := l.(wireLabels); ok && m.manyLabels {
			l = w.set()
		}
		if !m.labels.Matches(l) {
			return false, nil
		}
	}
	if m.fields != nil {
		w := wireFields{record: rec}
		if ok := m.fields.Matches(&w); w.err == nil {
			return ok, nil
		}
	} else if m.query.Object == nil && (m.query.Fields == nil || m.query.Fields.Empty()) {
		return true, nil
	}
	o, err := m.object(rec)
	if err != nil {
		return false, err
	}
	if m.query.Object != nil && m.labels != nil && !m.labels.Matches(labels.Set(o.GetLabels())) {
		return false, nil
	}
	if f := m.query.Fields; f != nil && !f.Empty() && !f.Matches(m.fieldSet(o)) {
		return false, nil
	}
	return true, nil
}

// inScope reports whether key lies in namespace and has that name.
func inScope(key, namespace, name string) bool {
	if namespace != "" {
		rest, ok := strings.CutPrefix(key, namespace)
		if !ok || rest == "" || rest[0] != '/' {
			return false
		}
		return name == "" || rest[1:] == name
	}
	if name == "" {
		return true
	}
	if i := strings.LastIndexByte(key, '/'); i >= 0 {
		key = key[i+1:]
	}
	return key == name
}
