package watchcache

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/registry"
)

func parseRevision(s string) (int64, error) {
	rev, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, &InvalidError{fmt.Sprintf("Invalid value: %q: %v", s, err)}
	}
	return int64(rev), nil
}

// Get returns the record under key: consistent with the store when
// resourceVersion is "", not older than it otherwise. ErrNotFound when there
// is none.
func (r *Resource) Get(ctx context.Context, key, resourceVersion string) (*Record, error) {
	if err := r.cache.waitForOne(ctx, resourceVersion); err != nil {
		return nil, err
	}
	if rec := r.Peek(key); rec != nil {
		return rec, nil
	}
	if f := r.faults.Load(); f != nil && f.all[key] != nil {
		return nil, f.all[key]
	}
	return nil, ErrNotFound
}

// Peek is the record under key as the cache holds it now, which may lag behind
// the store; nil when there is none.
func (r *Resource) Peek(key string) *Record {
	rec, _ := r.state.Load().tree.Get(key)
	return rec
}

// List finds what q selects, as of one revision. A page fails only if it comes
// to what cannot be read before it is full.
func (r *Resource) List(ctx context.Context, q Query) (*List, error) {
	st, rev, after, err := r.choose(ctx, q)
	if err != nil {
		return nil, err
	}
	bad, lack := r.unreadableIn(q.Namespace, q.Name, after)
	if lack != nil && q.Limit <= 0 {
		return nil, lack
	}
	list := &List{Revision: rev}
	m := r.matcher(&q)
	// With a limit, one record more reports whether there is a next page.
	var last *Record
	more := false
	looked := 0
	err = r.walk(st, &q, after, func(rec *Record) (bool, error) {
		if looked++; looked%64 == 0 && ctx.Err() != nil {
			return false, ctx.Err()
		}
		if lack != nil && rec.Key > bad {
			return false, nil
		}
		ok, err := m.match(rec)
		if err != nil || !ok {
			return err == nil, err
		}
		if q.Limit > 0 && int64(len(list.Records)) == q.Limit {
			more = true
			return false, nil
		}
		list.Records = append(list.Records, rec)
		last = rec
		return true, nil
	})
	if err == nil && lack != nil && !more {
		if more = int64(len(list.Records)) == q.Limit; !more {
			return nil, lack
		}
	}
	if err != nil || !more {
		return list, err
	}
	r.cache.ages.oldest(time.Now(), rev)
	list.Continue = encodeContinue(rev, scoped(last.Key, q.Namespace))
	if m.all && q.Name == "" {
		n := int64(0)
		if lack != nil {
			n = int64(len(lack.Faults))
		}
		_ = walk(st.tree, &q, last.Key, func(*Record) (bool, error) { n++; return true, nil })
		list.Remaining = &n
	}
	return list, nil
}

// choose finds the state a list reads, its revision, and the key it starts
// after.
func (r *Resource) choose(ctx context.Context, q Query) (st *state, rev int64, after string, err error) {
	if q.Continue != "" {
		token, err := decodeContinue(q.Continue)
		if err != nil {
			return nil, 0, "", err
		}
		after = token.Start
		if q.Namespace != "" {
			after = q.Namespace + "/" + after
		}
		if err := r.cache.waitFor(ctx, "0"); err != nil {
			return nil, 0, "", err
		}
		if token.Revision < 0 { // the client accepted an inconsistent rest
			st, rev = r.snapshot()
			return st, rev, after, nil
		}
		st, ok := r.stateAt(token.Revision)
		if !ok || token.Revision < r.cache.ages.oldest(time.Now(), r.cache.Revision()) {
			return nil, 0, "", &ContinueExpiredError{encodeContinue(-1, token.Start)}
		}
		return st, token.Revision, after, nil
	}
	if err := r.cache.waitFor(ctx, q.ResourceVersion); err != nil {
		return nil, 0, "", err
	}
	if q.Match == metav1.ResourceVersionMatchExact {
		rev, err := parseRevision(q.ResourceVersion)
		if err != nil {
			return nil, 0, "", err
		}
		st, ok := r.stateAt(rev)
		if !ok {
			return nil, 0, "", &TooOldError{rev, r.oldestRevision()}
		}
		return st, rev, "", nil
	}
	st, rev = r.snapshot()
	return st, rev, "", nil
}

func (r *Resource) oldestRevision() int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.oldest
}

// walk calls visit for the records in q's scope after a key, in key order,
// until it says no.
func walk(t *tree, q *Query, after string, visit func(*Record) (bool, error)) error {
	prefix := ""
	if q.Namespace != "" {
		prefix = q.Namespace + "/"
		if q.Name != "" {
			if rec, ok := t.Get(prefix + q.Name); ok && rec.Key > after {
				_, err := visit(rec)
				return err
			}
			return nil
		}
	}
	from := prefix
	if after >= from && after != "" {
		from = after + "\x00"
	}
	var err error
	t.Ascend(from, func(key string, rec *Record) bool {
		if !strings.HasPrefix(key, prefix) {
			return false
		}
		var more bool
		more, err = visit(rec)
		return more && err == nil
	})
	return err
}

// scan is every record in q's scope.
func scan(t *tree, q *Query) []*Record {
	var recs []*Record
	_ = walk(t, q, "", func(rec *Record) (bool, error) {
		recs = append(recs, rec)
		return true, nil
	})
	return recs
}

func scoped(key, namespace string) string {
	if namespace != "" {
		return key[len(namespace)+1:]
	}
	return key
}

// continueToken is upstream's form of a continue token.
type continueToken struct {
	APIVersion string `json:"v"`
	Revision   int64  `json:"rv"`
	Start      string `json:"start"`
}

func encodeContinue(rev int64, after string) string {
	b, err := json.Marshal(continueToken{"meta.k8s.io/v1", rev, after + "\x00"})
	if err != nil {
		panic(err) // a struct of strings and numbers always encodes
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func decodeContinue(s string) (continueToken, error) {
	var t continueToken
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &t)
	}
	switch {
	case err != nil:
		return t, &InvalidError{fmt.Sprintf("continue key is not valid: %v", err)}
	case t.APIVersion != "meta.k8s.io/v1":
		return t, &InvalidError{fmt.Sprintf("continue key is not valid: server does not recognize this encoded version %q", t.APIVersion)}
	case t.Revision == 0:
		return t, &InvalidError{"continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)"}
	case t.Start == "" || strings.Contains(t.Start, "../"):
		return t, &InvalidError{"continue key is not valid: encoded start key empty or not valid"}
	}
	t.Start = strings.TrimSuffix(t.Start, "\x00")
	return t, nil
}

// Read is the object under key as the cache holds it now; false when there is
// none. Nobody may change it.
func Read[T registry.Object](r *Resource, key string) (obj T, ok bool) {
	if r == nil {
		return obj, false
	}
	rec := r.Peek(key)
	if rec == nil {
		return obj, false
	}
	o, err := rec.Object()
	if err != nil {
		return obj, false
	}
	obj, ok = o.(T)
	return obj, ok
}

// Each calls visit for every object in namespace ("" is all), in key order,
// until it says no.
func Each[T registry.Object](r *Resource, namespace string, visit func(T) bool) {
	if r == nil {
		return
	}
	_ = walk(r.state.Load().tree, &Query{Namespace: namespace}, "", func(rec *Record) (bool, error) {
		o, err := rec.Object()
		if err != nil {
			return true, nil // one unreadable object hides no other
		}
		obj, ok := o.(T)
		return !ok || visit(obj), nil
	})
}

// Changed is the revision of the resource's last change, for whoever derives
// something from all its objects.
func (r *Resource) Changed() int64 { return r.state.Load().revision }

// Len is how many objects there are.
func (r *Resource) Len() int { return r.state.Load().tree.Len() }

// Size is that of all messages together, in bytes.
func (r *Resource) Size() int64 { return r.size.Load() }

// Watching is how many are told of a change of an object: those who watch
// everything, its namespace, or it alone. Those with a field of their own in the
// index are not counted, as upstream does not.
func (r *Resource) Watching(namespace, name string) int {
	n := int(r.main.watcherCount.Load())
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.groups) == 0 {
		return n
	}
	if g := r.groups["n:"+namespace]; namespace != "" && g != nil {
		n += int(g.watcherCount.Load())
	}
	if name == "" {
		return n
	}
	key := "o:" + name
	if namespace != "" {
		key = "o:" + namespace + "/" + name
	}
	if g := r.groups[key]; g != nil {
		n += int(g.watcherCount.Load())
	}
	return n
}
