package watchcache

import (
	"bytes"
	"fmt"

	"knarr/controlplane/apiserver/registry"
)

// A View makes of custom objects, as they are stored, what one version serves.
type View struct {
	// Make turns the stored object, which is its own, into the served one.
	Make func(obj registry.Object) (registry.Object, error)
}

// seen is a record as views have shown it. Few versions are ever asked for.
type seen struct {
	view   *View
	object registry.Object
	json   []byte
	next   *seen
}

// maxViews bounds how many views of one record are kept.
const maxViews = 4

// See is the record as v shows it: the object, which nobody may change, and its
// JSON with kind and apiVersion. It is made once while memory lasts.
func (r *Record) See(v *View) (registry.Object, []byte, error) {
	first := r.views.Load()
	depth := 0
	for s := first; s != nil; s = s.next {
		if s.view == v {
			return s.object, s.json, nil
		}
		depth++
	}
	stored, err := r.codec.decode(r.message)
	if err != nil {
		return nil, nil, fmt.Errorf("decode /registry/%s/%s: %w", r.codec.prefix, r.Key, err)
	}
	obj, err := v.Make(stored)
	if err != nil {
		return nil, nil, err
	}
	data, err := encodeJSON(obj)
	if err != nil {
		return nil, nil, fmt.Errorf("encode /registry/%s/%s: %w", r.codec.prefix, r.Key, err)
	}
	if bytes.Equal(data, r.message) {
		data = r.message // what is stored is what is served: keep it once
	}
	if depth >= maxViews {
		first = nil
	}
	s := &seen{v, obj, data, first}
	if r.views.CompareAndSwap(r.views.Load(), s) {
		r.codec.budget.spend(r, len(data)*5)
	}
	return obj, data, nil
}
