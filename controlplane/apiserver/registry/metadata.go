package registry

import (
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A MetadataRule says what a kind's own rules demand of metadata, beyond what
// is demanded of all kinds.
type MetadataRule int

const (
	// Standard kinds check name and generateName, and want finalizers to be
	// Kubernetes' own or to have a domain.
	Standard MetadataRule = iota
	// Plain kinds let finalizers have any name.
	Plain
	// Named kinds are Standard, but leave generateName alone.
	Named
	// Bare kinds demand nothing.
	Bare
)

var (
	metadata      = field.NewPath("metadata")
	owners        = metadata.Child("ownerReferences")
	managedFields = metadata.Child("managedFields")
)

func (k *Kind[T]) CheckMetadata(obj, old Object) field.ErrorList {
	if old == nil {
		return k.ownMetadata(obj)
	}
	errs := ValidateMetadataUpdate(obj, old, k.Namespaced())
	switch {
	case k.RecheckName:
		errs = append(errs, k.ownMetadata(obj)...)
	case k.Metadata == Standard || k.Metadata == Named:
		errs = append(errs, k.finalizers(obj)...)
	}
	return errs
}

func (k *Kind[T]) ownMetadata(obj Object) (errs field.ErrorList) {
	rule := k.NameRule
	switch {
	case k.NameRuleOf != nil:
		rule = k.NameRuleOf(obj.(T))
	case rule == nil:
		rule = NameIsDNSSubdomain
	}
	switch k.Metadata {
	case Bare:
		return nil
	case Plain:
		return ValidateNewMetadata(obj, k.Namespaced(), rule)
	case Named:
		full := rule
		rule = func(name string, prefix bool) []string {
			if prefix {
				return nil
			}
			return full(name, false)
		}
	}
	return append(ValidateNewMetadata(obj, k.Namespaced(), rule), k.finalizers(obj)...)
}

func (k *Kind[T]) finalizers(obj Object) (errs field.ErrorList) {
	for i, name := range obj.GetFinalizers() {
		errs = append(errs, standardFinalizer(name, metadata.Child("finalizers").Index(i))...)
	}
	return errs
}

// ValidateNewMetadata is what is wrong with a new object's metadata by a rule for
// its name.
func ValidateNewMetadata(obj Object, namespaced bool, rule func(name string, prefix bool) []string) field.ErrorList {
	return validateNewMetadata(obj, namespaced, rule)
}

// ValidateMetadataUpdate is what no update of any kind may do to metadata.
func ValidateMetadataUpdate(obj, old Object, namespaced bool) field.ErrorList {
	errs := validateMetadataUpdate(obj, old)
	if len(errs) == 0 && PathNames(obj) == nil && len(validation.ValidateFinalizers(obj.GetFinalizers(), metadata)) == 0 {
		return nil // all else has been looked at by now
	}
	return append(ValidateNewMetadata(obj, namespaced, NameIsPathSegment), errs...)
}

// PathNames says that an object's names can be parts of a path.
func PathNames(obj Object) (errs field.ErrorList) {
	for _, msg := range NameIsPathSegment(obj.GetName(), false) {
		errs = append(errs, field.Invalid(metadata.Child("name"), obj.GetName(), msg))
	}
	for _, msg := range NameIsPathSegment(obj.GetGenerateName(), true) {
		errs = append(errs, field.Invalid(metadata.Child("generateName"), obj.GetGenerateName(), msg))
	}
	return errs
}
