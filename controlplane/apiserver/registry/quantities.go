package registry

import (
	"fmt"
	"reflect"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxExponent bounds the exponents of quantities either way. The library takes
// any, and divides by zero where two of them differ by more than 32 bits hold.
const maxExponent = 999

// ValidateExponents refuses obj if a quantity in it has an exponent out of bounds.
// It comes before anything computes with the object, and visits only fields that
// lead to a quantity.
func ValidateExponents(obj Object) field.ErrorList {
	path, value, found := findExponent(reflect.ValueOf(obj))
	if !found {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath(strings.TrimPrefix(path, ".")), value,
		fmt.Sprintf("must have an exponent between %d and %d", -maxExponent, maxExponent))}
}

// findExponent gives the path in v and the text of the first quantity whose
// exponent is out of bounds.
func findExponent(v reflect.Value) (path, value string, found bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return findExponent(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			if path, value, found = findExponent(v.Index(i)); found {
				return fmt.Sprintf("[%d]%s", i, path), value, true
			}
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			if path, value, found = findExponent(entries.Value()); found {
				return fmt.Sprintf("[%v]%s", entries.Key(), path), value, true
			}
		}
	case reflect.Struct:
		if v.Type() == quantityType {
			return exponentOf(v.Interface().(resource.Quantity))
		}
		for _, i := range quantityFields(v.Type()) {
			if path, value, found = findExponent(v.Field(i)); found {
				return fieldName(v.Type().Field(i)) + path, value, true
			}
		}
	}
	return "", "", false
}

var quantityType = reflect.TypeFor[resource.Quantity]()

// exponentOf finds a quantity whose own exponent is out of bounds.
func exponentOf(q resource.Quantity) (path, value string, found bool) {
	if q.Format != resource.DecimalExponent {
		return "", "", false
	}
	whole := q.DeepCopy()
	if scale := whole.AsDec().Scale(); scale >= -maxExponent && scale <= maxExponent {
		return "", "", false
	}
	return "", q.String(), true
}

// fieldName is a field as a path has it; a field that is inlined has no name.
func fieldName(f reflect.StructField) string {
	if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
		return "." + name
	}
	return ""
}

var fieldsWithQuantity sync.Map // reflect.Type of a struct to []int

// quantityFields are the fields of a struct that lead to a quantity.
func quantityFields(t reflect.Type) []int {
	if known, ok := fieldsWithQuantity.Load(t); ok {
		return known.([]int)
	}
	var fields []int
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && searchQuantity(f.Type, map[reflect.Type]bool{}) {
			fields = append(fields, i)
		}
	}
	fieldsWithQuantity.Store(t, fields)
	return fields
}

// searchQuantity follows the types that t is made of. seen ends recursive ones.
func searchQuantity(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t == quantityType {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return searchQuantity(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && searchQuantity(f.Type, seen) {
				return true
			}
		}
	}
	return false
}
