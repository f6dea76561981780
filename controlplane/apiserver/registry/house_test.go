package registry

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestHouse holds the table together.
func TestHouse(t *testing.T) {
	plurals := map[schema.GroupVersionResource]bool{}
	prefixes := map[string]schema.GroupVersionResource{}
	for _, r := range Resources {
		gvr := r.GVR()
		if plurals[gvr] {
			t.Errorf("%v is twice in the table", gvr)
		}
		plurals[gvr] = true
		if obj := r.New(); obj == nil {
			t.Errorf("%v: no object", gvr)
		}
		if r.IsVirtual() {
			if got := verbsOf(r); !slices.Equal([]string{"create"}, got) && !slices.Equal([]string{"get", "list"}, got) {
				t.Errorf("%v is virtual but serves %v", gvr, verbsOf(r))
			}
			continue
		}
		if r.NewList() == nil {
			t.Errorf("%v: no list", gvr)
		}
		defs := r.ColumnDefinitions()
		if len(defs) == 0 || !slices.ContainsFunc(defs, func(d metav1.TableColumnDefinition) bool { return d.Name == "Name" }) {
			t.Errorf("%v has no Name column", gvr)
		}
		empty := r.New()
		r.Defaults(empty)
		for i, cell := range r.Row(empty) {
			if cell == nil {
				t.Errorf("%v: column %s has no cell", gvr, defs[i].Name)
			}
		}
		if labels := r.FieldLabels(); !slices.Contains(labels, "metadata.name") {
			t.Errorf("%v cannot be selected by name: %v", gvr, labels)
		}
		s := r.Storage()
		if strings.Trim(s.Prefix, "/") != s.Prefix || s.Prefix == "" {
			t.Errorf("%v: storage prefix %q", gvr, s.Prefix)
		}
		if s.Hub.GVR() == gvr {
			if other, ok := prefixes[s.Prefix]; ok {
				t.Errorf("%v and %v are stored in %s", gvr, other, s.Prefix)
			}
			prefixes[s.Prefix] = gvr
		}
		for _, sub := range r.Subresources() {
			if len(sub.Verbs) == 0 || sub.Kind.Empty() {
				t.Errorf("%v/%s: verbs %v, kind %v", gvr, sub.Name, sub.Verbs, sub.Kind)
			}
		}
	}
}

func verbsOf(r Resource) (verbs []string) {
	for _, v := range AllVerbs {
		if r.Supports(v) {
			verbs = append(verbs, v)
		}
	}
	return verbs
}

// TestDefaultsIdempotent: defaulting runs on what was defaulted before.
func TestDefaultsIdempotent(t *testing.T) {
	for _, r := range Resources {
		obj := r.New()
		r.Defaults(obj)
		again := obj.DeepCopyObject().(Object)
		r.Defaults(again)
		if !same(obj, again) {
			t.Errorf("%v: defaults differ the second time", r.GVR())
		}
	}
}
