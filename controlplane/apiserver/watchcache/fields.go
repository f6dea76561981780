package watchcache

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/transcode"
)

// What selectors look at is read from the message where it can be: decoding an
// object to see that it is not wanted would cost a hundred times as much.

// paths are where the texts of a kind's field labels are in its message. Labels
// that are no text, or are derived, have none.
func paths(kind registry.Resource, plan *transcode.Plan) map[string]transcode.Path {
	if plan == nil {
		return nil
	}
	found := map[string]transcode.Path{}
	const derived = "status.podIP" // from the list of addresses
	for _, label := range append(kind.FieldLabels(), "metadata.name", "metadata.namespace") {
		if path, ok := plan.Path(label); ok && label != derived {
			found[label] = path
		}
	}
	return found
}

// manyTerms of a selector are looked up in a map of an object's labels, rather
// than one by one in its message.
const manyTerms = 8

// labelsOf are the object's labels.
func (r *Record) labelsOf() (labels.Labels, error) {
	if o := r.object.Load(); o != nil {
		return labels.Set((*o).GetLabels()), nil
	}
	if r.codec.form == customForm {
		return r.customLabels()
	}
	meta, err := firstField(r.message)
	if err != nil {
		return nil, err
	}
	return wireLabels(meta), nil
}

func (r *Record) customLabels() (labels.Labels, error) {
	s := scanner{data: r.message}
	set := labels.Set{}
	var failed error
	err := s.object(func(key []byte, from, to int) {
		if string(key) != `"metadata"` {
			return
		}
		in := scanner{data: r.message[:to], pos: from}
		failed = in.object(func(key []byte, from, to int) {
			if string(key) == `"labels"` && r.message[from] == '{' {
				failed = json.Unmarshal(r.message[from:to], &set)
			}
		})
	})
	if err == nil {
		err = failed
	}
	return set, err
}

// firstField is field 1 of a message, the metadata of every kind.
func firstField(message []byte) ([]byte, error) {
	if len(message) == 0 || message[0] != 0x0a {
		return nil, nil
	}
	_, meta, _, _, err := nextField(message)
	return meta, err
}

// wireLabels are the labels in an ObjectMeta message, its field 11.
type wireLabels []byte

const labelsTag = 11<<3 | 2

func (w wireLabels) Has(key string) bool {
	_, ok := w.Lookup(key)
	return ok
}

func (w wireLabels) Get(key string) string {
	value, _ := w.Lookup(key)
	return value
}

// Lookup finds a label. A message that cannot be read has none: it could not be
// decoded either.
func (w wireLabels) Lookup(key string) (string, bool) {
	value, ok := w.find(key)
	return string(value), ok
}

// set is the labels as a map.
func (w wireLabels) set() labels.Set {
	set := labels.Set{}
	for b := []byte(w); len(b) > 0; {
		tag, entry, _, rest, err := nextField(b)
		if err != nil {
			return nil
		}
		if b = rest; tag == labelsTag {
			k, v, ok := wireEntry(entry)
			if !ok {
				return nil
			}
			set[string(k)] = string(v)
		}
	}
	return set
}

func (w wireLabels) find(key string) (value []byte, found bool) {
	for b := []byte(w); len(b) > 0; {
		tag, entry, _, rest, err := nextField(b)
		if err != nil {
			return nil, false
		}
		b = rest
		if tag != labelsTag {
			continue
		}
		k, v, ok := wireEntry(entry)
		if !ok {
			return nil, false
		}
		if string(k) == key {
			value, found = v, true // the last of a name counts
		}
	}
	return value, found
}

// wireEntry is one entry of a map of texts.
func wireEntry(entry []byte) (key, value []byte, ok bool) {
	for len(entry) > 0 {
		tag, body, _, rest, err := nextField(entry)
		if err != nil {
			return nil, nil, false
		}
		switch tag {
		case 1<<3 | 2:
			key = body
		case 2<<3 | 2:
			value = body
		}
		entry = rest
	}
	return key, value, true
}

// text is the value of a field label that has a path.
func (r *Record) text(label string) ([]byte, error) {
	return r.codec.paths[label].Find(r.message)
}

// wireFields are a record's field labels that have paths. It remembers the last
// one: a selector may name one field in tens of thousands of terms, and terms
// come sorted.
type wireFields struct {
	record       *Record
	label, value string
	err          error
}

func (w *wireFields) Has(label string) bool {
	_, ok := w.record.codec.paths[label]
	return ok
}

func (w *wireFields) Get(label string) string {
	if label == w.label {
		return w.value
	}
	value, err := w.record.text(label)
	if err != nil {
		w.err = err
	}
	w.label, w.value = label, string(value)
	return w.value
}

// readable says that all a selector asks for has paths.
func (c *codec) readable(s fields.Selector) bool {
	for _, q := range s.Requirements() {
		if _, ok := c.paths[q.Field]; !ok {
			return false
		}
	}
	return true
}

// value is that of a label or field, by an index's name; ok is false when a label
// is not there at all.
func (r *Record) value(index string) (value []byte, ok bool) {
	name := index[2:]
	if index[0] == 'f' {
		value, err := r.text(name)
		return value, err == nil
	}
	l, err := r.labelsOf()
	if err != nil {
		return nil, false
	}
	if w, wire := l.(wireLabels); wire {
		return w.find(name)
	}
	s, ok := l.Lookup(name)
	return []byte(s), ok
}

// indexKey is where a record is in an index's tree.
func indexKey(value []byte, key string) string {
	var b bytes.Buffer
	b.Grow(len(value) + 1 + len(key))
	b.Write(value)
	b.WriteByte(0)
	b.WriteString(key)
	return b.String()
}
