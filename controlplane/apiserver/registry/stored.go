package registry

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// StoredKind is the kind and version that objects are stored as; empty for a custom kind's
// version that is not served.
func StoredKind(r Resource) schema.GroupVersionKind {
	s := r.Storage()
	if s.Text != nil {
		return s.Text.GroupVersionKind
	}
	return s.GVK
}

// StoredAs is the resource that a key of the store belongs to; false for keys
// that belong to none. Kinds that are stored as another one are that one.
// Custom kinds lie in folders of their group, which has a dot as no built-in
// folder has.
func StoredAs(root string) func(key string) (schema.GroupResource, bool) {
	folders := map[string]schema.GroupResource{}
	all := slices.Clone(Resources)
	for _, r := range Optional {
		all = append(all, r.Resource)
	}
	for _, r := range all {
		if !r.IsVirtual() {
			s := r.Storage()
			folders[s.Prefix] = s.Hub.GVR().GroupResource()
		}
	}
	return func(key string) (schema.GroupResource, bool) {
		rest, ok := strings.CutPrefix(key, root)
		if !ok {
			return schema.GroupResource{}, false
		}
		first, rest, _ := strings.Cut(rest, "/")
		if gr, ok := folders[first]; ok {
			return gr, true
		}
		second, _, ok := strings.Cut(rest, "/")
		if gr, known := folders[first+"/"+second]; known {
			return gr, true
		}
		return schema.GroupResource{Group: first, Resource: second}, ok && strings.Contains(first, ".")
	}
}
