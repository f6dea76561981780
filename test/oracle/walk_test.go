package oracle

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A field is one place in a kind's objects: names of fields, and "0" for the
// first item of a list.
type field struct {
	path []string
	typ  reflect.Type
}

// deepest bounds the paths, and deepestRepeat how often a type is met on one.
const deepest, deepestRepeat = 14, 2

// fields are all places under t, parents before children.
func fields(t reflect.Type, at []string, met map[reflect.Type]int, visit func(field)) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if len(at) > deepest || met[t] >= deepestRepeat {
		return
	}
	if t.Kind() == reflect.Struct && !scalar(t) {
		met[t]++
		defer func() { met[t]-- }()
		for i := range t.NumField() {
			f := t.Field(i)
			name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
			if strings.Contains(opts, "inline") || f.Anonymous && name == "" {
				fields(f.Type, at, met, visit)
				continue
			}
			if name == "" || name == "-" || f.Type == reflect.TypeFor[[]metav1.ManagedFieldsEntry]() {
				continue
			}
			below(f.Type, append(at[:len(at):len(at)], name), met, visit)
		}
	}
}

// below visits a place and what is under it.
func below(t reflect.Type, at []string, met map[reflect.Type]int, visit func(field)) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	visit(field{at, t})
	switch {
	case t.Kind() == reflect.Slice && structural(t.Elem()):
		fields(t.Elem(), append(at[:len(at):len(at)], "0"), met, visit)
	case structural(t):
		fields(t, at, met, visit)
	}
}

func structural(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && !scalar(t)
}

// scalar says that a struct is one value in JSON.
func scalar(t reflect.Type) bool {
	_, ok := scalars[t]
	return ok
}

// with is obj with value at path, and as little as possible made on the way.
func with(obj any, path []string, value any) any {
	if len(path) == 0 {
		return value
	}
	if path[0] == "0" {
		list, _ := obj.([]any)
		if len(list) == 0 {
			list = []any{nil}
		}
		out := append([]any(nil), list...)
		out[0] = with(out[0], path[1:], value)
		return out
	}
	out := map[string]any{}
	if m, ok := obj.(map[string]any); ok {
		for k, v := range m {
			out[k] = v
		}
	}
	if len(path) == 1 && value == absent {
		delete(out, path[0])
	} else {
		out[path[0]] = with(out[path[0]], path[1:], value)
	}
	return out
}

// at is what obj has at path, or nil.
func at(obj any, path []string) any {
	for _, p := range path {
		switch o := obj.(type) {
		case map[string]any:
			obj = o[p]
		case []any:
			if p != "0" || len(o) == 0 {
				return nil
			}
			obj = o[0]
		default:
			return nil
		}
	}
	return obj
}

var quantity = reflect.TypeFor[resource.Quantity]()
