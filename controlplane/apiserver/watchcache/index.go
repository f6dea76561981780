package watchcache

import (
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// A valueIndex is the resource's records by the value of one label or field, for
// lists that select one value: it makes their cost that of their answer. It is built
// when a list of a big resource asks for it, and dropped when none did for long.
type valueIndex struct {
	tree tree         // keyed by value, zero byte, key
	used atomic.Int64 // when, in Unix seconds
}

// indexView is a snapshot of a valueIndex.
type indexView struct {
	*valueIndex
	tree *tree
}

const (
	// fewRecords are searched as quickly without an index.
	fewRecords = 256
	maxIndexes = 8
	indexIdle  = 10 * time.Minute
)

// indexFor is the name of the index that narrows q most plainly, and the value it
// selects; "" when q selects no single value. Field values come first: they are
// rarer.
func (r *Resource) indexFor(q *Query) (name, value string) {
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
	name, value := r.indexFor(q)
	if name == "" || q.Name != "" || st.tree.Len() < fewRecords {
		return walk(st.tree, q, after, visit)
	}
	l := st.indexes[name]
	if l.valueIndex == nil {
		if st != r.state.Load() {
			return walk(st.tree, q, after, visit) // of the past
		}
		if l = r.buildIndex(st, name); l.valueIndex == nil {
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

// buildIndex builds an index of the present state; none when that is no longer st.
func (r *Resource) buildIndex(st *state, name string) indexView {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.state.Load()
	if now.revision != st.revision {
		return indexView{}
	}
	if l, ok := now.indexes[name]; ok {
		return l
	}
	for len(r.indexes) >= maxIndexes {
		r.dropIndex()
	}
	l := &valueIndex{}
	l.used.Store(time.Now().Unix())
	r.head.Scan(func(key string, rec *Record) bool {
		if v, ok := rec.value(name); ok {
			l.tree.Set(indexKey(v, key), rec)
		}
		return true
	})
	if r.indexes == nil {
		r.indexes = map[string]*valueIndex{}
	}
	r.indexes[name] = l
	next := &state{now.tree, now.revision, r.views()}
	r.state.Store(next)
	return next.indexes[name]
}

// dropIndex drops the index that was made or asked for first.
func (r *Resource) dropIndex() {
	oldest := ""
	for name, l := range r.indexes {
		if oldest == "" || l.used.Load() < r.indexes[oldest].used.Load() {
			oldest = name
		}
	}
	delete(r.indexes, oldest)
}

// updateIndexes brings the indexes up to date with events.
func (r *Resource) updateIndexes(events []*event, now time.Time) {
	for name, l := range r.indexes {
		if now.Sub(time.Unix(l.used.Load(), 0)) > indexIdle {
			delete(r.indexes, name)
			continue
		}
		for _, e := range events {
			if e.prev != nil {
				if v, ok := e.prev.value(name); ok {
					l.tree.Delete(indexKey(v, e.prev.Key))
				}
			}
			if e.now != nil {
				if v, ok := e.now.value(name); ok {
					l.tree.Set(indexKey(v, e.now.Key), e.now)
				}
			}
		}
	}
}

// views are snapshots of all indexes.
func (r *Resource) views() map[string]indexView {
	if len(r.indexes) == 0 {
		return nil
	}
	out := make(map[string]indexView, len(r.indexes))
	for name, l := range r.indexes {
		out[name] = indexView{l, l.tree.Copy()}
	}
	return out
}
