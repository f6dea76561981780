// Package equal compares API objects by meaning, as upstream's semantic equality
// does: nil and empty lists and maps are equal, quantities and times are compared
// by value. It reads the objects and keeps one comparison per type, made at first
// use: API types are trees, so that neither cycles nor visited pointers need to
// be remembered, which is what makes the general comparison slow.
package equal

import (
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects says whether a and b mean the same. They are of the same type, or
// different.
func Objects(a, b any) bool {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	if !va.IsValid() || !vb.IsValid() {
		return va.IsValid() == vb.IsValid()
	}
	if va.Type() != vb.Type() {
		return false
	}
	return of(va.Type())(va, vb)
}

type comparison func(a, b reflect.Value) bool

var comparisons sync.Map // reflect.Type -> comparison

func of(t reflect.Type) comparison {
	if c, ok := comparisons.Load(t); ok {
		return c.(comparison)
	}
	// Types contain themselves: until the comparison is made, its place is taken
	// by one that looks it up.
	c := build(t)
	comparisons.Store(t, c)
	return c
}

func build(t reflect.Type) comparison {
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		return func(a, b reflect.Value) bool {
			x, y := a.Interface().(resource.Quantity), b.Interface().(resource.Quantity)
			return x.Cmp(y) == 0
		}
	case reflect.TypeFor[metav1.Time]():
		return func(a, b reflect.Value) bool {
			x, y := a.Interface().(metav1.Time), b.Interface().(metav1.Time)
			return x.Equal(&y)
		}
	case reflect.TypeFor[metav1.MicroTime]():
		return func(a, b reflect.Value) bool {
			x, y := a.Interface().(metav1.MicroTime), b.Interface().(metav1.MicroTime)
			return x.Equal(&y)
		}
	}
	switch t.Kind() {
	case reflect.String:
		return func(a, b reflect.Value) bool { return a.String() == b.String() }
	case reflect.Bool:
		return func(a, b reflect.Value) bool { return a.Bool() == b.Bool() }
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(a, b reflect.Value) bool { return a.Int() == b.Int() }
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		return func(a, b reflect.Value) bool { return a.Uint() == b.Uint() }
	case reflect.Float32, reflect.Float64:
		return func(a, b reflect.Value) bool { return a.Float() == b.Float() }
	case reflect.Pointer:
		elem := later(t.Elem())
		return func(a, b reflect.Value) bool {
			switch {
			case a.UnsafePointer() == b.UnsafePointer():
				return true
			case a.IsNil() || b.IsNil():
				return false
			}
			return elem(a.Elem(), b.Elem())
		}
	case reflect.Slice:
		return slices(t)
	case reflect.Map:
		return maps(t)
	case reflect.Struct:
		return structs(t)
	}
	return func(a, b reflect.Value) bool { return equality.Semantic.DeepEqual(a.Interface(), b.Interface()) }
}

// later finds the comparison when it is first needed.
func later(t reflect.Type) comparison {
	switch t.Kind() {
	case reflect.Struct, reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		return func(a, b reflect.Value) bool { return of(t)(a, b) }
	}
	return build(t)
}

func slices(t reflect.Type) comparison {
	elem := later(t.Elem())
	return func(a, b reflect.Value) bool {
		n := a.Len()
		if n != b.Len() {
			return false
		}
		if n == 0 || a.UnsafePointer() == b.UnsafePointer() {
			return true
		}
		for i := range n {
			if !elem(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	}
}

func maps(t reflect.Type) comparison {
	elem := later(t.Elem())
	return func(a, b reflect.Value) bool {
		if a.Len() != b.Len() {
			return false
		}
		if a.Len() == 0 || a.UnsafePointer() == b.UnsafePointer() {
			return true
		}
		for it := a.MapRange(); it.Next(); {
			other := b.MapIndex(it.Key())
			if !other.IsValid() || !elem(it.Value(), other) {
				return false
			}
		}
		return true
	}
}

func structs(t reflect.Type) comparison {
	fields := make([]comparison, t.NumField())
	for i := range fields {
		if !t.Field(i).IsExported() {
			// Only its own methods know what it means.
			return func(a, b reflect.Value) bool { return equality.Semantic.DeepEqual(a.Interface(), b.Interface()) }
		}
		fields[i] = later(t.Field(i).Type)
	}
	return func(a, b reflect.Value) bool {
		for i, same := range fields {
			if !same(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
}
