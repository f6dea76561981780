package watchcache

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"knarr/controlplane/apiserver/registry"
)

// jsonHead starts the JSON document of a built-in kind.
func jsonHead(gvk schema.GroupVersionKind) []byte {
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, kind, apiVersion)
}

// encodeText is encode for kinds stored as JSON, in upstream's layout: custom
// objects with sorted keys, CustomResourceDefinitions as their type has them.
func (c *codec) encodeText(o registry.Object) (value, message []byte, err error) {
	o.SetResourceVersion("")
	data, err := encodeJSON(o)
	if err != nil {
		return nil, nil, fmt.Errorf("encode %T: %w", o, err)
	}
	if c.form == customForm {
		return append(data, '\n'), data, nil
	}
	m, ok := o.(interface{ Marshal() ([]byte, error) })
	if !ok {
		return nil, nil, fmt.Errorf("encode %T: no protobuf form", o)
	}
	if message, err = m.Marshal(); err != nil {
		return nil, nil, fmt.Errorf("encode %T: %w", o, err)
	}
	if c.text != nil {
		stored, err := c.text.Encode(o)
		if err == nil {
			data, err = encodeJSON(stored)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("encode %T: %w", o, err)
		}
		return append(data, '\n'), message, nil
	}
	value = append(bytes.Clone(c.stored), data[1:]...)
	return append(value, '\n'), message, nil
}

// messageOfText is what is kept in memory of a built-in kind's JSON.
func (c *codec) messageOfText(value []byte) ([]byte, error) {
	o := c.new()
	var err error
	if c.text != nil {
		o, err = c.text.Decode(value)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(value, o)
	}
	if err != nil {
		return nil, err
	}
	o.GetObjectKind().SetGroupVersionKind(noKind)
	m, ok := o.(interface{ Marshal() ([]byte, error) })
	if !ok {
		return nil, fmt.Errorf("%T has no protobuf form", o)
	}
	return m.Marshal()
}

func decodeCustom(message []byte, o registry.Object) error {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("%T is no custom object", o)
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(message, &u.Object); err != nil {
		return err
	}
	if u.Object == nil {
		return errNoObject
	}
	return nil
}

var errNoObject = errors.New("the value is no JSON object")

// withJSONVersion copies the JSON object data with metadata.resourceVersion
// set, in the order of keys where it is new. Nothing else is looked into.
func withJSONVersion(data []byte, revision int64) ([]byte, error) {
	meta := -1 // where metadata's value starts
	s := scanner{data: data}
	err := s.object(func(key []byte, from, to int) {
		if string(key) == `"metadata"` && meta < 0 {
			meta = from
		}
	})
	if err != nil {
		return nil, err
	}
	if meta < 0 || data[meta] != '{' {
		return nil, errNoMetadata
	}
	version := append([]byte(`"resourceVersion":"`), strconv.AppendInt(nil, revision, 10)...)
	version = append(version, '"')
	in := scanner{data: data, pos: meta}
	from, to, members := -1, -1, 0
	place := -1 // before the first key that sorts after resourceVersion
	err = in.object(func(key []byte, start, end int) {
		members++
		switch {
		case string(key) == `"resourceVersion"`:
			from, to = start, end
		case place < 0 && string(key) > `"resourceVersion"`:
			place = in.keyAt
		}
	})
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(data)+len(version)+1)
	switch {
	case from >= 0: // replace the value
		out = append(out, data[:from]...)
		out = append(out, version[len(`"resourceVersion":`):]...)
		return append(out, data[to:]...), nil
	case place >= 0:
		out = append(append(out, data[:place]...), version...)
		return append(append(out, ','), data[place:]...), nil
	}
	end := in.pos - 1 // metadata's closing brace
	out = append(out, data[:end]...)
	if members > 0 {
		out = append(out, ',')
	}
	return append(append(out, version...), data[end:]...), nil
}

var (
	errNoMetadata = errors.New("the value has no metadata")
	errBadJSON    = errors.New("the value is no JSON document")
)

// A scanner walks the members of one JSON object without decoding them.
type scanner struct {
	data  []byte
	pos   int
	keyAt int // where the present member's key starts
}

func (s *scanner) space() {
	for s.pos < len(s.data) && bytes.IndexByte([]byte(" \t\r\n"), s.data[s.pos]) >= 0 {
		s.pos++
	}
}

func (s *scanner) take(c byte) bool {
	s.space()
	if s.pos < len(s.data) && s.data[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

// object calls member with each key, quoted, and where its value is.
func (s *scanner) object(member func(key []byte, from, to int)) error {
	if !s.take('{') {
		return errNoObject
	}
	if s.take('}') {
		return nil
	}
	for {
		s.space()
		s.keyAt = s.pos
		if err := s.text(); err != nil {
			return err
		}
		key := s.data[s.keyAt:s.pos]
		if !s.take(':') {
			return errBadJSON
		}
		s.space()
		from := s.pos
		if err := s.skip(); err != nil {
			return err
		}
		member(key, from, s.pos)
		if s.take('}') {
			return nil
		}
		if !s.take(',') {
			return errBadJSON
		}
	}
}

// text skips a string.
func (s *scanner) text() error {
	if !s.take('"') {
		return errBadJSON
	}
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case '\\':
			s.pos += 2
			continue
		case '"':
			s.pos++
			return nil
		}
		s.pos++
	}
	return errBadJSON
}

// skip passes one value: to its end only brackets and strings matter.
func (s *scanner) skip() error {
	depth := 0
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case '"':
			if err := s.text(); err != nil {
				return err
			}
			if depth == 0 {
				return nil
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return nil
			}
			if depth--; depth == 0 {
				s.pos++
				return nil
			}
		case ',':
			if depth == 0 {
				return nil
			}
		}
		s.pos++
	}
	return errBadJSON
}
