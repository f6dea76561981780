package watchcache

import (
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// A lens is the resource's records by the value of one label or field, for lists
// that select one value: it makes their cost that of their answer. A lens is made
// when a list of a big resource asks for it, and dropped when none did for long.
type lens struct {
	tree tree         // keyed by value, zero byte, key
	used atomic.Int64 // when, in Unix seconds
}

// lensView is a snapshot of a lens.
type lensView struct {
	*lens
	tree *tree
}

const (
	// fewRecords are searched as quickly without a lens.
	fewRecords = 256
	maxLenses  = 8
	lensIdle   = 10 * time.Minute
)

// lensOf is the name of the lens that narrows q most plainly, and the value it
// selects; "" when q selects no single value. Field values come first: they are
// rarer.
func (r *Resource) lensOf(q *Query) (name, value string) {
	if q.Object == nil && q.FieldSet == nil && q.Fields != nil {
		for _, req := range q.Fields.Requirements() {
			if _, ok := r.codec.paths[req.Field]; ok && req.Operator != selection.NotEquals && !strings.HasPrefix(req.Field, "metadata.") {
				return "f:" + req.Field, req.Value
			}
		}
	}
	if q.Labels == nil || q.Object != nil {
		return "", ""
	}
	reqs, _ := q.Labels.Requirements()
	for _, req := range reqs {
		if value, ok := single(req); ok {
			return "l:" + req.Key(), value
		}
	}
	return "", ""
}

func single(req labels.Requirement) (string, bool) {
	switch req.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		values := req.ValuesUnsorted()
		if len(values) == 1 {
			return values[0], true
		}
	}
	return "", false
}

// walk calls visit for the records of st in q's scope after a key, in key order,
// until it says no; it leaves out some that q does not select.
func (r *Resource) walk(st *state, q *Query, after string, visit func(*Record) (bool, error)) error {
	name, value := r.lensOf(q)
	if name == "" || q.Name != "" || st.tree.Len() < fewRecords {
		return walk(st.tree, q, after, visit)
	}
	l := st.lenses[name]
	if l.lens == nil {
		if st != r.state.Load() {
			return walk(st.tree, q, after, visit) // of the past
		}
		if l = r.grind(st, name); l.lens == nil {
			return walk(st.tree, q, after, visit)
		}
	}
	l.used.Store(time.Now().Unix())
	prefix := value + "\x00"
	from := prefix
	if q.Namespace != "" {
		prefix += q.Namespace + "/"
		from = prefix
	}
	if after != "" {
		from = max(from, value+"\x00"+after+"\x00")
	}
	var err error
	l.tree.Ascend(from, func(key string, rec *Record) bool {
		if !strings.HasPrefix(key, prefix) {
			return false
		}
		var more bool
		more, err = visit(rec)
		return more && err == nil
	})
	return err
}

// grind makes a lens of the present state; none when that is no longer st.
func (r *Resource) grind(st *state, name string) lensView {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.state.Load()
	if now.revision != st.revision {
		return lensView{}
	}
	if l, ok := now.lenses[name]; ok {
		return l
	}
	for len(r.lenses) >= maxLenses {
		r.dropLens()
	}
	l := &lens{}
	l.used.Store(time.Now().Unix())
	r.head.Scan(func(key string, rec *Record) bool {
		if v, ok := rec.value(name); ok {
			l.tree.Set(lensKey(v, key), rec)
		}
		return true
	})
	if r.lenses == nil {
		r.lenses = map[string]*lens{}
	}
	r.lenses[name] = l
	next := &state{now.tree, now.revision, r.views()}
	r.state.Store(next)
	return next.lenses[name]
}

// dropLens drops the lens that was made or asked for first.
func (r *Resource) dropLens() {
	oldest := ""
	for name, l := range r.lenses {
		if oldest == "" || l.used.Load() < r.lenses[oldest].used.Load() {
			oldest = name
		}
	}
	delete(r.lenses, oldest)
}

// refract brings the lenses up to date with events.
func (r *Resource) refract(events []*event, now time.Time) {
	for name, l := range r.lenses {
		if now.Sub(time.Unix(l.used.Load(), 0)) > lensIdle {
			delete(r.lenses, name)
			continue
		}
		for _, e := range events {
			if e.prev != nil {
				if v, ok := e.prev.value(name); ok {
					l.tree.Delete(lensKey(v, e.prev.Key))
				}
			}
			if e.now != nil {
				if v, ok := e.now.value(name); ok {
					l.tree.Set(lensKey(v, e.now.Key), e.now)
				}
			}
		}
	}
}

// views are snapshots of all lenses.
func (r *Resource) views() map[string]lensView {
	if len(r.lenses) == 0 {
		return nil
	}
	out := make(map[string]lensView, len(r.lenses))
	for name, l := range r.lenses {
		out[name] = lensView{l, l.tree.Copy()}
	}
	return out
}
