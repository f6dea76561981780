package registry

import "k8s.io/apimachinery/pkg/util/validation/field"

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

// among demands one of the supported values, named in the order given.
func among[S ~string](f *faults, value S, at *field.Path, supported ...S) {
	for _, s := range supported {
		if s == value {
			return
		}
	}
	f.list = append(f.list, field.NotSupported(at, value, supported))
}
