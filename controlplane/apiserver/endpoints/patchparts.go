package endpoints

import (
	"reflect"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/apiserver/registry"
)

// mergedParts applies a merge or strategic merge patch to those top-level
// fields of old that it names; the others are not taken apart, nor is metadata
// of which only texts are set. ok is false when the patch is not of that form.
func (p *patch) mergedParts(old, empty registry.Object) (obj registry.Object, ok bool, err error) {
	if reflect.TypeOf(old) != reflect.TypeOf(empty) || p.sub != nil && p.sub.GetScale != nil {
		return nil, false, nil
	}
	parts := partsOf(reflect.TypeOf(empty).Elem())
	texts, simple := metadataTexts(p.merge["metadata"])
	changes := make(map[string]any, len(p.merge))
	for key, value := range p.merge {
		if _, known := parts[key]; !known {
			return nil, false, nil
		}
		if key != "metadata" || !simple {
			changes[key] = runtime.DeepCopyJSONValue(value) // the merge takes it apart
		}
	}
	if len(changes) > 0 {
		if ok, err := p.mergeParts(parts, changes, old, empty); !ok || err != nil {
			return nil, ok, err
		}
	}
	obj = copyOf(old)
	to, patched := reflect.ValueOf(obj).Elem(), reflect.ValueOf(empty).Elem()
	keep := obj.GetManagedFields()
	for key := range changes {
		to.FieldByIndex(parts[key]).Set(patched.FieldByIndex(parts[key]))
	}
	if obj.GetManagedFields() == nil {
		obj.SetManagedFields(keep)
	}
	setTexts(obj, texts)
	dropKind(obj, p.gvk)
	return obj, true, nil
}

// mergeParts puts the parts of old that changes names, changed, into an empty
// object.
func (p *patch) mergeParts(parts map[string][]int, changes map[string]any, old, empty registry.Object) (ok bool, err error) {
	from, part := reflect.ValueOf(old).Elem(), reflect.ValueOf(p.res.New()).Elem()
	for key := range changes {
		part.FieldByIndex(parts[key]).Set(from.FieldByIndex(parts[key]))
	}
	holder := part.Addr().Interface().(registry.Object)
	managed := holder.GetManagedFields()
	if meta, _ := changes["metadata"].(map[string]any); meta["managedFields"] == nil {
		if _, named := meta["managedFields"]; named {
			return false, nil
		}
		holder.SetManagedFields(nil)
	}
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(holder)
	if err != nil {
		return false, err
	}
	for key := range before {
		if _, named := changes[key]; !named {
			delete(before, key)
		}
	}
	if holder.GetManagedFields() == nil {
		holder.SetManagedFields(managed)
	}
	after, err := p.mergeMaps(before, changes, empty)
	if err != nil {
		return true, err
	}
	if err := p.fromMap(after, empty); err != nil {
		// A merge patch's fault is reported with the whole object.
		if p.kind == types.MergePatchType {
			return false, nil
		}
		return true, err
	}
	return true, nil
}

var partTables sync.Map // reflect.Type -> map[string][]int

// partsOf are the top-level fields of a kind by JSON name, without kind and
// apiVersion.
func partsOf(t reflect.Type) map[string][]int {
	if m, ok := partTables.Load(t); ok {
		return m.(map[string][]int)
	}
	m := map[string][]int{}
	for i := range t.NumField() {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			m[name] = f.Index
		}
	}
	partTables.Store(t, m)
	return m
}

// metadataTexts is what a patch does with metadata, when that is no more than to
// set texts, and to set or remove labels and annotations.
func metadataTexts(change any) (texts map[string]any, simple bool) {
	texts, ok := change.(map[string]any)
	if !ok {
		return nil, false
	}
	for key, value := range texts {
		switch key {
		case "name", "namespace", "uid", "resourceVersion":
			_, ok = value.(string)
		case "labels", "annotations":
			ok = mapOfTexts(value)
		default:
			ok = false
		}
		if !ok {
			return nil, false
		}
	}
	return texts, true
}

// mapOfTexts says that v holds texts, or nulls, and no directive.
func mapOfTexts(v any) bool {
	m, ok := v.(map[string]any)
	for key, value := range m {
		if _, text := value.(string); !text && value != nil || strings.HasPrefix(key, "$") {
			return false
		}
	}
	return ok
}

func setTexts(obj metav1.Object, texts map[string]any) {
	for key, value := range texts {
		switch key {
		case "name":
			obj.SetName(value.(string))
		case "namespace":
			obj.SetNamespace(value.(string))
		case "uid":
			obj.SetUID(types.UID(value.(string)))
		case "resourceVersion":
			obj.SetResourceVersion(value.(string))
		case "labels":
			obj.SetLabels(mergedTexts(obj.GetLabels(), value.(map[string]any)))
		case "annotations":
			obj.SetAnnotations(mergedTexts(obj.GetAnnotations(), value.(map[string]any)))
		}
	}
}

// mergedTexts is to, which it may change, with the changes.
func mergedTexts(to map[string]string, changes map[string]any) map[string]string {
	if to == nil {
		to = make(map[string]string, len(changes))
	}
	for key, value := range changes {
		if text, ok := value.(string); ok {
			to[key] = text
		} else {
			delete(to, key)
		}
	}
	return to
}
