// Package equal compares API objects: by meaning, as upstream's semantic equality
// does (nil and empty lists and maps are equal, quantities and times are compared
// by value), or exactly. It reads the objects and keeps one comparison per type,
// made at first use: API types are trees, so that neither cycles nor visited
// pointers need to be remembered, and a comparison knows where each field lies,
// which is what makes the general one, by reflection, slow.
package equal

import (
	"reflect"
	"sync"
	"unsafe"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects reports whether a and b mean the same. They are of the same type, or
// different.
func Objects(a, b any) bool {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	if !va.IsValid() || !vb.IsValid() {
		return va.IsValid() == vb.IsValid()
	}
	if va.Type() != vb.Type() {
		return false
	}
	if va.Kind() == reflect.Pointer {
		if va.IsNil() || vb.IsNil() {
			return va.IsNil() == vb.IsNil()
		}
		return semantic.of(va.Type().Elem())(va.UnsafePointer(), vb.UnsafePointer())
	}
	return semantic.of(va.Type())(copied(va), copied(vb))
}

// copied is where a copy of v lies.
func copied(v reflect.Value) unsafe.Pointer {
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p.UnsafePointer()
}

// A Comparison compares two values of the type it was made for.
type Comparison func(a, b unsafe.Pointer) bool

// Exact is the comparison of two values of type t that are one in JSON too: nil
// and empty differ, and so do quantities written differently. It may find a
// difference where there is none.
func Exact(t reflect.Type) Comparison { return exact.of(t) }

// A mode is a way to compare.
type mode struct {
	exact       bool
	comparisons sync.Map // reflect.Type -> Comparison
}

var semantic, exact = &mode{}, &mode{exact: true}

func (m *mode) of(t reflect.Type) Comparison {
	if c, ok := m.comparisons.Load(t); ok {
		return c.(Comparison)
	}
	// Types contain themselves: until the comparison is made, its place is taken
	// by one that looks it up.
	c := m.build(t)
	m.comparisons.Store(t, c)
	return c
}

// by compares values of the type it is asked for.
func by[T any](same func(a, b *T) bool) Comparison {
	return func(a, b unsafe.Pointer) bool { return same((*T)(a), (*T)(b)) }
}

func plain[T comparable]() Comparison { return by(func(a, b *T) bool { return *a == *b }) }

func (m *mode) build(t reflect.Type) Comparison {
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		return by(func(a, b *resource.Quantity) bool {
			x, y := *a, *b // String keeps what it made, and others may read
			return x.Cmp(y) == 0 && (!m.exact || x.String() == y.String())
		})
	case reflect.TypeFor[metav1.Time]():
		return by(func(a, b *metav1.Time) bool { return a.Equal(b) })
	case reflect.TypeFor[metav1.MicroTime]():
		return by(func(a, b *metav1.MicroTime) bool { return a.Equal(b) })
	}
	switch t.Kind() {
	case reflect.String:
		return plain[string]()
	case reflect.Bool, reflect.Int8, reflect.Uint8:
		return plain[uint8]()
	case reflect.Int16, reflect.Uint16:
		return plain[uint16]()
	case reflect.Int32, reflect.Uint32:
		return plain[uint32]()
	case reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint64:
		return plain[uint64]()
	case reflect.Float32:
		return plain[float32]()
	case reflect.Float64:
		return plain[float64]()
	case reflect.Pointer:
		return m.pointers(t)
	case reflect.Slice:
		return m.slices(t)
	case reflect.Map:
		return m.maps(t)
	case reflect.Struct:
		return m.structs(t)
	}
	return m.general(t)
}

// general knows nothing of the type.
func (m *mode) general(t reflect.Type) Comparison {
	same := equality.Semantic.DeepEqual
	if m.exact {
		same = reflect.DeepEqual
	}
	return func(a, b unsafe.Pointer) bool {
		return same(reflect.NewAt(t, a).Elem().Interface(), reflect.NewAt(t, b).Elem().Interface())
	}
}

// later finds the comparison when it is first needed.
func (m *mode) later(t reflect.Type) Comparison {
	switch t.Kind() {
	case reflect.Struct, reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		find := sync.OnceValue(func() Comparison { return m.of(t) })
		return func(a, b unsafe.Pointer) bool { return find()(a, b) }
	}
	return m.build(t)
}

func (m *mode) pointers(t reflect.Type) Comparison {
	elem := m.later(t.Elem())
	return by(func(a, b *unsafe.Pointer) bool {
		return *a == *b || *a != nil && *b != nil && elem(*a, *b)
	})
}

// list is how a slice lies in memory.
type list struct {
	data unsafe.Pointer
	len  int
	_    int
}

func (m *mode) slices(t reflect.Type) Comparison {
	elem, size := m.later(t.Elem()), t.Elem().Size()
	return by(func(a, b *list) bool {
		if a.len != b.len || m.exact && (a.data == nil) != (b.data == nil) {
			return false
		}
		if a.len == 0 || a.data == b.data {
			return true
		}
		for i := range a.len {
			at := uintptr(i) * size
			if !elem(unsafe.Add(a.data, at), unsafe.Add(b.data, at)) {
				return false
			}
		}
		return true
	})
}

func (m *mode) maps(t reflect.Type) Comparison {
	if t.Key().Kind() == reflect.String && t.Elem().Kind() == reflect.String {
		return by(func(a, b *map[string]string) bool {
			if len(*a) != len(*b) || m.exact && (*a == nil) != (*b == nil) {
				return false
			}
			for k, v := range *a {
				if other, ok := (*b)[k]; !ok || other != v {
					return false
				}
			}
			return true
		})
	}
	elem := m.later(t.Elem())
	return func(pa, pb unsafe.Pointer) bool {
		a, b := reflect.NewAt(t, pa).Elem(), reflect.NewAt(t, pb).Elem()
		if a.Len() != b.Len() || m.exact && a.IsNil() != b.IsNil() {
			return false
		}
		if a.Len() == 0 || a.UnsafePointer() == b.UnsafePointer() {
			return true
		}
		for it := a.MapRange(); it.Next(); {
			other := b.MapIndex(it.Key())
			if !other.IsValid() || !elem(copied(it.Value()), copied(other)) {
				return false
			}
		}
		return true
	}
}

func (m *mode) structs(t reflect.Type) Comparison {
	type field struct {
		at   uintptr
		same Comparison
	}
	fields := make([]field, t.NumField())
	for i := range fields {
		f := t.Field(i)
		if !f.IsExported() {
			return m.general(t) // only its own methods know what it means
		}
		fields[i] = field{f.Offset, m.later(f.Type)}
	}
	return func(a, b unsafe.Pointer) bool {
		for i := range fields {
			if f := &fields[i]; !f.same(unsafe.Add(a, f.at), unsafe.Add(b, f.at)) {
				return false
			}
		}
		return true
	}
}
