package registry

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// faults collects what is wrong with an object.
type faults struct{ list field.ErrorList }

func (f *faults) add(errs field.ErrorList) { f.list = append(f.list, errs...) }

func (f *faults) invalid(at *field.Path, value any, msg string) {
	f.list = append(f.list, field.Invalid(at, value, msg))
}

func (f *faults) required(at *field.Path, msg string) {
	f.list = append(f.list, field.Required(at, msg))
}

func (f *faults) forbidden(at *field.Path, msg string) {
	f.list = append(f.list, field.Forbidden(at, msg))
}

func (f *faults) duplicate(at *field.Path, value any) {
	f.list = append(f.list, field.Duplicate(at, value))
}

func (f *faults) notFound(at *field.Path, value any) {
	f.list = append(f.list, field.NotFound(at, value))
}

// Most of what is checked has no fault: those that follow are told the field's
// parent and name, and make its path, which a path of a library takes an
// allocation for, only when they need it.

// need demands that a field is set.
func (f *faults) need(value string, at *field.Path, name string) {
	if value == "" {
		f.required(at.Child(name), "")
	}
}

// label demands a DNS label.
func (f *faults) label(value string, at *field.Path, name string) {
	switch {
	case value == "":
		f.required(at.Child(name), "")
	case !plainLabel(value):
		f.add(dnsLabel(value, at.Child(name)))
	}
}

// choice demands one of the supported values, named in the order given.
func choice[S ~string](f *faults, value S, at *field.Path, name string, supported ...S) {
	switch {
	case value == "":
		f.required(at.Child(name), "")
	case !slices.Contains(supported, value):
		f.list = append(f.list, field.NotSupported(at.Child(name), value, supported))
	}
}

// among demands one of the supported values, named in the order given.
func among[S ~string](f *faults, value S, at *field.Path, supported ...S) {
	for _, s := range supported {
		if s == value {
			return
		}
	}
	f.list = append(f.list, field.NotSupported(at, value, supported))
}
