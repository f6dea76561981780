package ownership

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxUpdaters is how many managers that do not apply are kept apart.
const maxUpdaters = 10

// ancient is who owns what older managers had.
const ancient = "ancient-changes"

// A Request is one create, update or patch.
type Request struct {
	// Old is the state before, an empty object on creation; it may be shared. Obj
	// is the state that will be stored. Both are pointers to one struct type.
	Old, Obj any
	// Creating says that Old is no stored object.
	Creating bool
	// Live and Sent are the entries of the two.
	Live, Sent  []metav1.ManagedFieldsEntry
	Manager     string
	APIVersion  string
	Subresource string
	// Reset are top-level fields, as "f:status", that this request cannot
	// change, whatever it says.
	Reset []string
	Now   time.Time
}

// buffers are where entries are written before their size is known.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 2048); return &b }}

// An entry is one manager's, parsed.
type entry struct {
	metav1.ManagedFieldsEntry
	set     *Set
	changed bool // set is no longer what FieldsV1 says
}

// Update returns the entries of Obj. They may share parts with those given.
func Update(q Request) []metav1.ManagedFieldsEntry {
	source := q.Live
	if q.Subresource == "" {
		switch {
		case reset(q.Sent):
			source = nil
		case len(q.Sent) > 0:
			source = q.Sent
		}
	}
	entries, ok := decode(source)
	if !ok {
		source = q.Live
		if entries, ok = decode(source); !ok {
			entries = nil
		}
	}
	if len(entries) == 0 && !q.Creating {
		return nil // what is not tracked from its start never is
	}
	c := compare(reflect.ValueOf(q.Old).Elem(), reflect.ValueOf(q.Obj).Elem())
	defer c.free()
	if c.nameless {
		return nil // such an object cannot be merged, so nobody owns it
	}
	if len(q.Reset) > 0 {
		c.changed.without(q.Reset...)
		c.removed.without(q.Reset...)
	}
	if c.changed.Empty() && c.removed.Empty() {
		return source
	}
	gone := union(&c.changed, &c.removed)
	me := -1
	kept := entries[:0]
	for i := range entries {
		e := entries[i]
		left := difference(e.set, gone)
		if left != e.set {
			e.set, e.changed = left, true
		}
		mine := e.Operation == metav1.ManagedFieldsOperationUpdate && e.Manager == q.Manager &&
			e.APIVersion == q.APIVersion && e.Subresource == q.Subresource
		if e.set.Empty() && !(mine && !c.changed.Empty()) {
			continue
		}
		if mine {
			me = len(kept)
		}
		kept = append(kept, e)
	}
	entries = kept
	if !c.changed.Empty() {
		now := metav1.NewTime(q.Now.UTC().Truncate(time.Second))
		if me < 0 {
			entries = append(entries, entry{ManagedFieldsEntry: metav1.ManagedFieldsEntry{
				Manager: q.Manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: q.APIVersion,
				FieldsType: "FieldsV1", Subresource: q.Subresource}})
			me = len(entries) - 1
		}
		e := &entries[me]
		e.set, e.changed = union(e.set, &c.changed), true
		e.Time = &now
	}
	return encode(limit(entries))
}

// reset says that a client wants to start over.
func reset(sent []metav1.ManagedFieldsEntry) bool {
	if len(sent) == 0 {
		return sent != nil
	}
	return len(sent) == 1 && reflect.DeepEqual(sent[0], metav1.ManagedFieldsEntry{})
}

func decode(list []metav1.ManagedFieldsEntry) ([]entry, bool) {
	out := make([]entry, 0, len(list)+1)
	for i := range list {
		e := entry{ManagedFieldsEntry: list[i]}
		switch e.Operation {
		case metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate:
		default:
			return nil, false
		}
		if e.APIVersion == "" || e.FieldsType != "FieldsV1" {
			return nil, false
		}
		raw := []byte("{}")
		if e.FieldsV1 != nil {
			raw = e.FieldsV1.GetRawBytes()
		}
		var err error
		if e.set, err = read(raw); err != nil {
			return nil, false
		}
		out = append(out, e)
	}
	return out, true
}

// limit merges the oldest updaters into one per version when there are too
// many.
func limit(entries []entry) []entry {
	var updaters []int
	for i := range entries {
		if entries[i].Operation == metav1.ManagedFieldsOperationUpdate {
			updaters = append(updaters, i)
		}
	}
	over := len(updaters) - maxUpdaters
	if over <= 0 {
		return entries
	}
	slices.SortStableFunc(updaters, func(i, j int) int {
		if a, b := seconds(&entries[i]), seconds(&entries[j]); a != b {
			return int(a - b)
		}
		return strings.Compare(entries[i].Manager, entries[j].Manager)
	})
	first := map[string]int{}
	drop := map[int]bool{}
	for _, i := range updaters {
		if over <= 0 {
			break
		}
		e := &entries[i]
		k, ok := first[e.APIVersion]
		if !ok {
			first[e.APIVersion] = i
			continue
		}
		bucket := &entries[k]
		bucket.Manager, bucket.Subresource = ancient, ""
		bucket.set, bucket.changed = union(e.set, bucket.set), true
		bucket.Time = e.Time
		drop[i] = true
		over--
	}
	out := make([]entry, 0, len(entries))
	for i := range entries {
		if !drop[i] {
			out = append(out, entries[i])
		}
	}
	return out
}

func seconds(e *entry) int64 {
	if e.Time == nil {
		return 0
	}
	return e.Time.Unix()
}

func encode(entries []entry) []metav1.ManagedFieldsEntry {
	if len(entries) == 0 {
		return nil
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		if c := strings.Compare(string(a.Operation), string(b.Operation)); c != 0 {
			return c
		}
		if x, y := seconds(&a), seconds(&b); x != y {
			if x < y {
				return -1
			}
			return 1
		}
		if c := strings.Compare(a.Manager, b.Manager); c != 0 {
			return c
		}
		if c := strings.Compare(a.APIVersion, b.APIVersion); c != 0 {
			return c
		}
		return strings.Compare(a.Subresource, b.Subresource)
	})
	out := make([]metav1.ManagedFieldsEntry, len(entries))
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for i := range entries {
		e := &entries[i]
		if e.changed {
			*buf = e.set.appendJSON((*buf)[:0])
			e.FieldsV1 = &metav1.FieldsV1{}
			e.FieldsV1.SetRawBytes(bytes.Clone(*buf))
		}
		out[i] = e.ManagedFieldsEntry
	}
	return out
}
