package extension

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"

	"knarr/controlplane/apiserver/registry"
)

// A kind is one served version of a definition: a registry.Custom.
type kind struct {
	*definition
	version *apiextensionsv1.CustomResourceDefinitionVersion
	gvk     schema.GroupVersionKind
	gvr     schema.GroupVersionResource
	names   registry.Names
	columns *columns
	fields  []selectable
	notices []string
	subs    []registry.Sub
}

var _ registry.Custom = (*kind)(nil)

func newKind(d *definition, v *apiextensionsv1.CustomResourceDefinitionVersion) *kind {
	n, gv := d.crd.Status.AcceptedNames, schema.GroupVersion{Group: d.crd.Spec.Group, Version: v.Name}
	k := &kind{
		definition: d, version: v, gvk: gv.WithKind(n.Kind), gvr: gv.WithResource(n.Plural),
		names:   registry.Names{Plural: n.Plural, Singular: n.Singular, ListKind: n.ListKind, Short: n.ShortNames, Categories: n.Categories},
		columns: newColumns(v.AdditionalPrinterColumns), fields: newSelectable(v.SelectableFields),
	}
	if v.Deprecated {
		k.notices = []string{deprecation(&d.crd.Spec, v)}
	}
	if s := v.Subresources; s != nil {
		if s.Status != nil {
			k.subs = append(k.subs, k.statusSub())
		}
		if s.Scale != nil {
			k.subs = append(k.subs, k.scaleSub(s.Scale))
		}
	}
	return k
}

// deprecation is the warning of a deprecated version.
func deprecation(spec *apiextensionsv1.CustomResourceDefinitionSpec, v *apiextensionsv1.CustomResourceDefinitionVersion) string {
	if v.DeprecationWarning != nil {
		return *v.DeprecationWarning
	}
	text := fmt.Sprintf("%s/%s %s is deprecated", spec.Group, v.Name, spec.Names.Kind)
	best := ""
	for _, o := range spec.Versions {
		if o.Served && !o.Deprecated && version.CompareKubeAwareVersionStrings(v.Name, o.Name) < 0 &&
			(best == "" || version.CompareKubeAwareVersionStrings(best, o.Name) < 0) {
			best = o.Name
		}
	}
	if best != "" {
		text += fmt.Sprintf("; use %s/%s %s", spec.Group, best, spec.Names.Kind)
	}
	return text
}

func (k *kind) GVK() schema.GroupVersionKind     { return k.gvk }
func (k *kind) GVR() schema.GroupVersionResource { return k.gvr }
func (k *kind) Names() registry.Names            { return k.names }
func (k *kind) Namespaced() bool                 { return k.crd.Spec.Scope == apiextensionsv1.NamespaceScoped }
func (k *kind) IsVirtual() bool                  { return false }
func (k *kind) Traits() registry.Traits          { return registry.Traits{Conditional: true} }
func (k *kind) Subresources() []registry.Sub     { return k.subs }
func (k *kind) Notices() []string                { return k.notices }
func (k *kind) Ending() bool                     { return k.ending }

// Storage names the version stored by a kind of its own, served or not.
func (k *kind) Storage() registry.Storage {
	hub := *k
	hub.gvk.Version, hub.gvr.Version = k.definition.storage, k.definition.storage
	s := registry.Storage{Prefix: k.prefix(), Hub: &hub, JSON: true}
	for _, served := range k.definition.kinds {
		if served.gvk == hub.gvk {
			s.GVK = hub.gvk
		}
	}
	return s
}

func (k *kind) New() registry.Object {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(k.gvk)
	return u
}

func (k *kind) NewList() runtime.Object {
	l := &unstructured.UnstructuredList{Object: map[string]any{}}
	l.SetGroupVersionKind(k.gvk.GroupVersion().WithKind(k.names.ListKind))
	return l
}

func (k *kind) Supports(verb string) bool { return slices.Contains(registry.AllVerbs, verb) }

func (k *kind) CheckMetadata(obj, old registry.Object) field.ErrorList {
	if old == nil {
		return registry.ValidateNewMetadata(obj, k.Namespaced(), registry.NameIsDNSSubdomain)
	}
	return registry.ValidateMetadataUpdate(obj, old, k.Namespaced())
}

func (k *kind) GraceSeconds(registry.Object, *metav1.DeleteOptions) int64 { return 0 }

func (k *kind) Defaults(obj registry.Object) {
	if s, err := k.shape(k.version.Name); err == nil {
		s.setDefaults(obj.(*unstructured.Unstructured))
	}
}

func (k *kind) Coerce(u *unstructured.Unstructured, wanted bool) ([]string, error) {
	s, err := k.shape(k.version.Name)
	if err != nil {
		return nil, err
	}
	return s.coerce(u, coercion{wanted: wanted})
}

func (k *kind) Types() (managedfields.TypeConverter, error) { return k.types() }

func (k *kind) PrepareObject(_ context.Context, obj, old registry.Object) {
	u := obj.(*unstructured.Unstructured)
	status := k.version.Subresources != nil && k.version.Subresources.Status != nil
	if old == nil {
		if status {
			delete(u.Object, "status")
		}
		u.SetGeneration(1)
		return
	}
	was := old.(*unstructured.Unstructured)
	if status {
		if s, ok := was.Object["status"]; ok {
			u.Object["status"] = s
		} else {
			delete(u.Object, "status")
		}
	}
	if !sameBut(u.Object, was.Object, "metadata") {
		u.SetGeneration(was.GetGeneration() + 1)
	}
}

// sameBut compares two objects without one of their fields.
func sameBut(a, b map[string]any, field string) bool {
	count := func(m map[string]any) int {
		if _, ok := m[field]; ok {
			return len(m) - 1
		}
		return len(m)
	}
	if count(a) != count(b) {
		return false
	}
	for name, value := range a {
		if name == field {
			continue
		}
		if other, ok := b[name]; !ok || !equality.Semantic.DeepEqual(value, other) {
			return false
		}
	}
	return true
}

func (k *kind) statusSub() registry.Sub {
	return registry.Sub{
		Name: "status", Kind: k.gvk, Verbs: []string{"get", "patch", "update"}, Writes: true,
		Prepare: func(_ context.Context, obj, old registry.Object) {
			u := obj.(*unstructured.Unstructured)
			status, ok := u.Object["status"]
			managed := u.GetManagedFields()
			u.Object = old.(*unstructured.Unstructured).DeepCopy().Object
			u.SetManagedFields(managed)
			if delete(u.Object, "status"); ok {
				u.Object["status"] = status
			}
		},
		Validate: k.validateStatus,
	}
}

func (k *kind) FieldSet(obj registry.Object) fields.Set {
	set := fields.Set{"metadata.name": obj.GetName()}
	if k.Namespaced() {
		set["metadata.namespace"] = obj.GetNamespace()
	}
	for i := range k.fields {
		set[k.fields[i].name] = k.fields[i].value(obj.(*unstructured.Unstructured))
	}
	return set
}

func (k *kind) FieldLabels() []string {
	labels := []string{"metadata.name"}
	if k.Namespaced() {
		labels = append(labels, "metadata.namespace")
	}
	for _, f := range k.fields {
		labels = append(labels, f.name)
	}
	return labels
}

func (k *kind) ColumnDefinitions() []metav1.TableColumnDefinition { return k.columns.heads }

func (k *kind) Row(obj registry.Object) []any { return k.columns.row(obj.(*unstructured.Unstructured)) }

// pathOf are the fields that a simple JSON path names.
func pathOf(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }
