package ownership

import (
	"reflect"
	"unsafe"
)

// A field of a struct, or of a struct that is inlined in it.
type field struct {
	elem   string // "f:name"
	index  []int
	typ    reflect.Type
	offset uintptr
	left   leftOut
	plan   *plan
}

// leftOut is when JSON leaves a field out.
type leftOut int

const (
	never    leftOut = iota
	noWord           // a nil pointer
	noMap            // a map without entries
	noLength         // a string or slice without content
	noByte           // a number or boolean that is zero, of one byte
	noInt32          // of four
	noInt64          // of eight
	empty            // otherwise empty
	zero             // otherwise zero
)

func leftOutOf(t reflect.Type, omitEmpty, omitZero bool) leftOut {
	switch {
	case omitZero:
		return zero
	case !omitEmpty || t.Kind() == reflect.Struct:
		return never
	}
	switch t.Kind() {
	case reflect.Pointer:
		return noWord
	case reflect.Map:
		return noMap
	case reflect.String, reflect.Slice:
		return noLength
	case reflect.Bool, reflect.Int8, reflect.Uint8:
		return noByte
	case reflect.Int32, reflect.Uint32:
		return noInt32
	case reflect.Int64, reflect.Uint64:
		return noInt64
	}
	return empty
}

// absent says of the field of the struct at s that JSON leaves it out.
func (f *field) absent(s unsafe.Pointer) bool {
	at := unsafe.Add(s, f.offset)
	switch f.left {
	case never:
		return false
	case noWord:
		return *(*unsafe.Pointer)(at) == nil
	case noLength: // the second word of a string and of a slice
		return *(*int)(unsafe.Add(at, unsafe.Sizeof(uintptr(0)))) == 0
	case noByte:
		return *(*byte)(at) == 0
	case noInt32:
		return *(*int32)(at) == 0
	case noInt64:
		return *(*int64)(at) == 0
	case noMap:
		return *(*unsafe.Pointer)(at) == nil || reflect.NewAt(f.typ, at).Elem().Len() == 0
	case zero:
		return isZero(reflect.NewAt(f.typ, at).Elem())
	}
	return isEmpty(reflect.NewAt(f.typ, at).Elem())
}

// of is the field's value in struct v, which has no address; absent when JSON
// leaves it out.
func (f *field) of(v reflect.Value) reflect.Value {
	v = v.FieldByIndex(f.index)
	if f.left != never && (f.left == zero && isZero(v) || f.left != zero && isEmpty(v)) {
		return reflect.Value{}
	}
	return v
}

func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice, reflect.String, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

func isZero(v reflect.Value) bool {
	if v.Kind() != reflect.Pointer && v.CanInterface() {
		if v.CanAddr() { // a pointer has the methods of both, and is no copy
			if z, ok := v.Addr().Interface().(interface{ IsZero() bool }); ok {
				return z.IsZero()
			}
			return v.IsZero()
		}
		if z, ok := v.Interface().(interface{ IsZero() bool }); ok {
			return z.IsZero()
		}
	}
	return v.IsZero()
}
