package definition

import (
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// extensions checks what a schema says in Kubernetes' own words.
func (w *walk) extensions(s *props, at *field.Path) {
	if keep := s.XPreserveUnknownFields; keep != nil && !*keep {
		w.bad(field.Invalid(at.Child("x-kubernetes-preserve-unknown-fields"), *keep, "must be true or undefined"))
	}
	w.typeOf(s.XMapType, "object", "x-kubernetes-map-type", s, at)
	if m := s.XMapType; m != nil && *m != "atomic" && *m != "granular" {
		w.bad(field.NotSupported(at.Child("x-kubernetes-map-type"), *m, []string{"atomic", "granular"}))
	}
	if !w.typeOf(s.XListType, "array", "x-kubernetes-list-type", s, at) && w.atomicSets && granularSet(s) {
		const msg = "must be atomic as item of a list with x-kubernetes-list-type=set"
		name := "x-kubernetes-map-type"
		if s.Items.Schema.Type == "array" {
			name = "x-kubernetes-list-type"
		}
		w.bad(field.Invalid(at.Child("items").Child(name), s.Items.Schema.XListType, msg))
	}
	kind := ""
	if s.XListType != nil {
		kind = *s.XListType
		if kind != "atomic" && kind != "set" && kind != "map" {
			w.bad(field.NotSupported(at.Child("x-kubernetes-list-type"), kind, []string{"atomic", "set", "map"}))
		}
	}
	if len(s.XListMapKeys) > 0 {
		const msg = "must be map if x-kubernetes-list-map-keys is non-empty"
		switch {
		case s.XListType == nil:
			w.bad(field.Required(at.Child("x-kubernetes-list-type"), msg))
		case kind != "map":
			w.bad(field.Invalid(at.Child("x-kubernetes-list-type"), kind, msg))
		}
	}
	if kind == "map" {
		w.keyedList(s, at)
	}
	if w.mapKeys {
		w.bad(mapKeyFaults(s, at)...)
	}
}

// typeOf demands the type that an extension is for; it reports whether the demand
// was not met.
func (w *walk) typeOf(extension *string, typ, name string, s *props, at *field.Path) bool {
	if extension == nil || s.Type == typ {
		return false
	}
	msg := "must be " + typ + " if " + name + " is specified"
	if s.Type == "" {
		w.bad(field.Required(at.Child("type"), msg))
	} else {
		w.bad(field.Invalid(at.Child("type"), s.Type, msg))
	}
	return true
}

// keyedList checks a list of the type map, whose items have keys.
func (w *walk) keyedList(s *props, at *field.Path) {
	keys := at.Child("x-kubernetes-list-map-keys")
	if len(s.XListMapKeys) == 0 {
		w.bad(field.Required(keys, "must not be empty if x-kubernetes-list-type is map"))
	}
	if s.Items == nil {
		w.bad(field.Required(at.Child("items"), "must have a schema if x-kubernetes-list-type is map"))
		return
	}
	item := s.Items.Schema
	if item == nil {
		w.bad(field.Invalid(at.Child("items"), s.Items, "must only have a single schema if x-kubernetes-list-type is map"))
		return
	}
	if item.Type != "object" {
		w.bad(field.Invalid(at.Child("items", "type"), item.Type, "must be object if parent array's x-kubernetes-list-type is map"))
		return
	}
	seen := sets.New[string]()
	for _, k := range s.XListMapKeys {
		part, ok := item.Properties[k]
		switch {
		case !ok:
			w.bad(field.Invalid(keys, s.XListMapKeys, "entries must all be names of item properties"))
		case part.Type == "array" || part.Type == "object":
			w.bad(field.Invalid(at.Child("items", "properties").Key(k).Child("type"), item.Type, "must be a scalar type if parent array's x-kubernetes-list-type is map"))
		}
		if seen.Has(k) {
			w.bad(field.Invalid(keys, s.XListMapKeys, "must not contain duplicate entries"))
		}
		seen.Insert(k)
	}
}

// mapKeyFaults: a list of the type map needs items and keys.
func mapKeyFaults(s *props, at *field.Path) (errs field.ErrorList) {
	if s.XListType == nil || *s.XListType != "set" && *s.XListType != "map" || s.Items == nil || s.Items.Schema == nil {
		return nil
	}
	item := s.Items.Schema
	if item.Nullable {
		errs = append(errs, field.Forbidden(at.Child("items", "nullable"), "cannot be nullable when x-kubernetes-list-type is "+*s.XListType))
	}
	if *s.XListType == "set" {
		return errs
	}
	needed := sets.New(item.Required...)
	for _, k := range s.XListMapKeys {
		part, ok := item.Properties[k]
		if !ok {
			continue
		}
		where := at.Child("items", "properties").Key(k)
		if !needed.Has(k) && part.Default == nil {
			errs = append(errs, field.Required(where.Child("default"), "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"))
		}
		if part.Nullable {
			errs = append(errs, field.Forbidden(where.Child("nullable"), "this property is in x-kubernetes-list-map-keys, so it cannot be nullable"))
		}
	}
	return errs
}
