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
// reads it. Its decoded object and its JSON are made at first need.
type Record struct {
	Key      string // below the resource's prefix: "namespace/name" or "name"
	Revision int64

	codec  *codec
	stored []byte // as the store holds it
	object atomic.Pointer[registry.Object]
	proto  atomic.Pointer[[]byte]
	json   atomic.Pointer[[]byte]
}

// Object is the decoded object with metadata.resourceVersion set and without
// kind and apiVersion. Nobody may change it or anything it points to:
// DeepCopyObject first.
func (r *Record) Object() (registry.Object, error) {
	if o := r.object.Load(); o != nil {
		return *o, nil
	}
	o, err := r.codec.decode(r.stored)
	if err != nil {
		return nil, fmt.Errorf("decode /registry/%s/%s: %w", r.codec.prefix, r.Key, err)
	}
	o.SetResourceVersion(strconv.FormatInt(r.Revision, 10))
	// Two readers may both decode; the first to publish wins, so that all share.
	if !r.object.CompareAndSwap(nil, &o) {
		o = *r.object.Load()
	}
	return o, nil
}

// Protobuf is the object's protobuf message (no envelope) with
// metadata.resourceVersion set: the bytes upstream's encoder would write.
func (r *Record) Protobuf() ([]byte, error) {
	if b := r.proto.Load(); b != nil {
		return *b, nil
	}
	message, ok := envelopeRaw(r.stored)
	if !ok {
		return nil, fmt.Errorf("/registry/%s/%s has no protobuf form", r.codec.prefix, r.Key)
	}
	b, err := withResourceVersion(message, r.Revision)
	if err != nil {
		return nil, fmt.Errorf("encode /registry/%s/%s: %w", r.codec.prefix, r.Key, err)
	}
	r.proto.Store(&b)
	return b, nil
}

// JSON is the object's compact JSON with metadata.resourceVersion and without
// kind and apiVersion, as items of a list are written. It starts with '{' and
// is never "{}" (metadata is there).
func (r *Record) JSON() ([]byte, error) {
	if b := r.json.Load(); b != nil {
		return *b, nil
	}
	o, err := r.Object()
	if err != nil {
		return nil, err
	}
	b, err := encodeJSON(o)
	if err != nil {
		return nil, fmt.Errorf("encode /registry/%s/%s: %w", r.codec.prefix, r.Key, err)
	}
	r.json.Store(&b)
	return b, nil
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
