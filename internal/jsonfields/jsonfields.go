// Package jsonfields names fields of a document that a user wrote: those that its type does not
// have, with the one that was meant, and the one whose value cannot be read. It reads and writes
// nothing.
package jsonfields

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"

	"knarr/internal/nearest"
)

// Decode reads a document into a value as API servers do: the names of fields are case-sensitive,
// and unknown are those that the value does not have, at most 100. An error names the field whose
// value cannot be read; Hint says which was meant of one that is unknown. Pure.
func Decode(doc []byte, into any) (unknown []error, err error) {
	unknown, err = kjson.UnmarshalStrict(doc, into)
	if err != nil {
		return nil, named(err, doc, reflect.TypeOf(into).Elem())
	}
	return unknown, nil
}

// Hint asks whether another field was meant than one that Decode does not know, as nearest.Hint
// does; of is a value of the document's type.
func Hint(err error, of any) string {
	e, ok := errors.AsType[kjson.FieldError](err)
	if !ok {
		return ""
	}
	path := split(e.FieldPath())
	if len(path) == 0 {
		return ""
	}
	at := reflect.TypeOf(of)
	for _, name := range path[:len(path)-1] {
		if at = below(at, name); at == nil {
			return ""
		}
	}
	return nearest.Hint(path[len(path)-1], names(at))
}

var index = regexp.MustCompile(`\[\d+\]`)

// split is a path by its names; elements of lists have none.
func split(path string) []string {
	return strings.FieldsFunc(index.ReplaceAllString(path, ""), func(r rune) bool { return r == '.' })
}

// element is what pointers, lists and objects of any name hold in the end; nil for a nil.
func element(t reflect.Type) reflect.Type {
	for t != nil && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		t = t.Elem()
	}
	return t
}

// below is the type of a field.
func below(t reflect.Type, name string) reflect.Type {
	switch t = element(t); {
	case t == nil:
	case t.Kind() == reflect.Map:
		return t.Elem()
	case t.Kind() == reflect.Struct:
		for _, f := range fields(t) {
			if f.name == name {
				return f.is
			}
		}
	}
	return nil
}

// names are those of a type's fields.
func names(t reflect.Type) (all []string) {
	if t = element(t); t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	for _, f := range fields(t) {
		all = append(all, f.name)
	}
	return all
}

// A fieldOf is a field by its name in JSON.
type fieldOf struct {
	name string
	is   reflect.Type
}

func fields(t reflect.Type) (all []fieldOf) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case name == "" && f.Anonymous && element(f.Type).Kind() == reflect.Struct:
			all = append(all, fields(element(f.Type))...)
		case name == "":
			all = append(all, fieldOf{f.Name, f.Type})
		default:
			all = append(all, fieldOf{name, f.Type})
		}
	}
	return all
}

// named puts the field before an error of what it says, which the decoder's errors of durations and
// quantities do not name. An error that a single field does not have is left as it is.
func named(err error, doc []byte, t reflect.Type) error {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return err
	}
	wrong := func(v any) error {
		b, err := json.Marshal(v)
		if err != nil {
			return nil
		}
		return kjson.UnmarshalCaseSensitivePreserveInts(b, reflect.New(t).Interface())
	}
	path, is := culprit(v, func(v any) any { return v }, wrong)
	if path == "" {
		return err
	}
	return &Error{strings.TrimPrefix(path, "."), is}
}

// An Error is why the value of a field cannot be read.
type Error struct {
	Field string
	Err   error
}

func (e *Error) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap is the decoder's error.
func (e *Error) Unwrap() error { return e.Err }

// culprit goes down to the value that is wrong where everything beside it is left out. Whole makes
// the document of a part of it.
func culprit(v any, whole func(any) any, wrong func(any) error) (path string, why error) {
	try := func(name string, part any, in func(any) any) bool {
		below := func(v any) any { return whole(in(v)) }
		err := wrong(below(part))
		if err == nil {
			return false
		}
		deeper, is := culprit(part, below, wrong)
		if path, why = name+deeper, is; is == nil {
			why = err
		}
		return true
	}
	switch v := v.(type) {
	case map[string]any:
		if wrong(whole(map[string]any{})) != nil {
			return "", nil // no object belongs here
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if try("."+name, v[name], func(part any) any { return map[string]any{name: part} }) {
				break
			}
		}
	case []any:
		if wrong(whole([]any{})) != nil {
			return "", nil
		}
		for i, one := range v {
			if try("["+strconv.Itoa(i)+"]", one, func(part any) any { return []any{part} }) {
				break
			}
		}
	}
	return path, why
}
