package watchcache

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"

	"knarr/controlplane/apiserver/registry"
)

// A Record is one revision of one object, immutable, shared by everybody who
// reads it. Its decoded object is made at first need and may be forgotten again
// under the cache's memory budget.
type Record struct {
	Key      string // below the resource's prefix: "namespace/name" or "name"
	Revision int64

	codec   *codec
	message []byte // protobuf, JSON of custom objects; metadata.resourceVersion set
	object  atomic.Pointer[registry.Object]
	views   atomic.Pointer[seen] // of custom objects
}

// Object is the decoded object with metadata.resourceVersion set and without
// kind and apiVersion; a custom one is as it is stored, with both. Nobody may
// change it or anything it points to: DeepCopyObject first.
func (r *Record) Object() (registry.Object, error) {
	if o := r.object.Load(); o != nil {
		return *o, nil
	}
	o, err := r.codec.decode(r.message)
	if err != nil {
		return nil, fmt.Errorf("decode /registry/%s/%s: %w", r.codec.prefix, r.Key, err)
	}
	// Two readers may both decode; the first to publish wins, so that all share.
	if !r.object.CompareAndSwap(nil, &o) {
		if p := r.object.Load(); p != nil {
			return *p, nil
		}
		return o, nil
	}
	r.codec.budget.spend(r, len(r.message)*r.codec.weight)
	return o, nil
}

// AppendJSON appends the object's compact JSON with metadata.resourceVersion
// and without kind and apiVersion, as items of a list are written. It starts
// with '{' and is never "{}" (metadata is there). A custom object's is as it is
// stored. It is made anew each time, from the message: that is cheaper than
// keeping it.
func (r *Record) AppendJSON(b []byte) ([]byte, error) {
	if r.codec.form == customForm {
		return append(b, r.message...), nil
	}
	if plan := r.codec.plan; plan != nil {
		with, err := plan.Append(b, r.message)
		if err == nil {
			return with, nil
		}
	}
	o, err := r.Object()
	if err != nil {
		return nil, err
	}
	data, err := encodeJSON(o)
	if err != nil {
		return nil, fmt.Errorf("encode /registry/%s/%s: %w", r.codec.prefix, r.Key, err)
	}
	return append(b, data...), nil
}

// AppendDocument appends the object's JSON after a head that ends in a comma.
func (r *Record) AppendDocument(b, head []byte) ([]byte, error) {
	b = append(b, head...)
	comma := len(b) - 1
	b, err := r.AppendJSON(b[:comma])
	if err == nil {
		b[comma] = ',' // where the object opened
	}
	return b, err
}

// Stored is the object's protobuf message without an envelope, resource version
// included, or a custom object's JSON. Nobody may change it.
func (r *Record) Stored() []byte { return r.message }

// Size is that of the object's message in bytes; its JSON is longer.
func (r *Record) Size() int { return len(r.message) }

// at is the same object as of another revision: a deleted object's last state
// carries the revision of the delete.
func (r *Record) at(revision int64) (*Record, error) {
	message, err := r.codec.versioned(r.message, revision)
	if err != nil {
		return nil, fmt.Errorf("encode /registry/%s/%s: %w", r.codec.prefix, r.Key, err)
	}
	return &Record{Key: r.Key, Revision: revision, codec: r.codec, message: message}, nil
}

// forget drops what can be made again.
func (r *Record) forget() {
	r.object.Store(nil)
	r.views.Store(nil)
}

// encodeJSON writes o as upstream's serializer does: HTML characters escaped,
// no trailing newline.
func encodeJSON(o registry.Object) ([]byte, error) {
	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(o); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

func formatRevision(rev int64) string { return strconv.FormatInt(rev, 10) }
