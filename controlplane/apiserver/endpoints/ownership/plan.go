package ownership

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/apiserver/endpoints/mergerules"
	"knarr/internal/equal"
)

type shape int

const (
	leaf    shape = iota // owned as a whole
	structs              // field by field
	maps                 // key by key
	sets                 // a list whose items are their own keys
	keyed                // a list of structs with keys
)

// A plan is how values of one type are walked.
type plan struct {
	shape          shape
	fields         []field
	elem           *plan // of maps and keyed lists
	texts, amounts bool  // it is a map of those
	keys           []key
	bare           bool             // an object's metadata: nobody owns it as such
	exact          equal.Comparison // of two values that both are there; nil when a walk is as quick
}

type key struct {
	name  string
	index []int
	omit  bool   // left out when zero: then its default stands in
	def   string // JSON of the default
	must  bool   // there is no default
}

var (
	marshalerType = reflect.TypeFor[json.Marshaler]()
	plans         sync.Map // reflect.Type -> *plan, of roots
)

// planOf is the plan of a whole object.
func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	b := &planner{done: map[planKey]*plan{}}
	p := b.root(t)
	plans.Store(t, p)
	return p
}

type planKey struct {
	t    reflect.Type
	rule string
}

// A planner makes plans; types may refer to themselves.
type planner struct{ done map[planKey]*plan }

// unowned are the fields of an object's metadata that nobody owns.
var unowned = []string{"f:name", "f:namespace", "f:creationTimestamp", "f:selfLink", "f:uid", "f:clusterName", "f:generation", "f:managedFields", "f:resourceVersion"}

func (b *planner) root(t reflect.Type) *plan {
	p := &plan{shape: structs}
	*p = *b.structure(t)
	p.fields = slices.DeleteFunc(slices.Clone(p.fields), func(f field) bool { return f.elem == "f:kind" || f.elem == "f:apiVersion" })
	for i := range p.fields {
		if p.fields[i].elem == "f:metadata" {
			own := *p.fields[i].plan
			own.fields = slices.DeleteFunc(slices.Clone(own.fields), func(f field) bool { return slices.Contains(unowned, f.elem) })
			own.bare = true
			p.fields[i].plan = &own
		}
	}
	return p
}

func (b *planner) structure(t reflect.Type) *plan {
	id := planKey{t, ""}
	if p := b.done[id]; p != nil {
		return p
	}
	p := &plan{shape: structs, exact: equal.Exact(t)}
	b.done[id] = p
	b.fields(p, t, nil, 0, mergerules.Of(t))
	return p
}

// fields adds t's fields. Those of inlined structs follow the rules of the
// type they are inlined in.
func (b *planner) fields(p *plan, t reflect.Type, at []int, offset uintptr, rules mergerules.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		index := append(slices.Clone(at), i)
		if name == "" && (f.Anonymous || strings.Contains(opts, "inline")) && f.Type.Kind() == reflect.Struct {
			b.fields(p, f.Type, index, offset+f.Offset, rules)
			continue
		}
		if name == "" {
			name = f.Name
		}
		p.fields = append(p.fields, field{
			elem: "f:" + name, index: index, typ: f.Type, offset: offset + f.Offset,
			left: leftOutOf(f.Type, strings.Contains(opts, "omitempty"), strings.Contains(opts, "omitzero")),
			plan: b.value(f.Type, rules.Fields[name]),
		})
	}
}

func (b *planner) value(t reflect.Type, rule mergerules.Rule) *plan {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Implements(marshalerType) || reflect.PointerTo(t).Implements(marshalerType) || rule.Atomic {
		return &plan{}
	}
	switch t.Kind() {
	case reflect.Struct:
		if mergerules.Of(t).Atomic && !rule.Granular {
			return &plan{}
		}
		return b.structure(t)
	case reflect.Map:
		return &plan{shape: maps, elem: b.value(t.Elem(), mergerules.Rule{}), exact: equal.Exact(t),
			texts: t.Key().Kind() == reflect.String && t.Elem().Kind() == reflect.String, amounts: t == reflect.TypeFor[corev1.ResourceList]()}
	case reflect.Slice:
		if rule.Set {
			return &plan{shape: sets}
		}
		if len(rule.Keys) == 0 {
			return &plan{}
		}
		item := t.Elem()
		if item.Kind() == reflect.Pointer {
			item = item.Elem()
		}
		p := &plan{shape: keyed, elem: b.value(item, mergerules.Rule{Granular: true}), exact: equal.Exact(t)}
		inner := b.structure(item)
		names := slices.Clone(rule.Keys)
		slices.SortFunc(names, func(x, y mergerules.Key) int { return strings.Compare(x.Name, y.Name) })
		for _, k := range names {
			for _, f := range inner.fields {
				if f.elem == "f:"+k.Name {
					p.keys = append(p.keys, key{k.Name, f.index, f.left != never, defaultJSON(item.FieldByIndex(f.index).Type, k.Default), k.Must})
				}
			}
		}
		if mergerules.Of(item).Atomic {
			p.elem = &plan{}
		}
		return p
	}
	return &plan{}
}

// defaultJSON is what an absent key counts as.
func defaultJSON(t reflect.Type, text string) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.String {
		q, err := json.Marshal(text)
		if err == nil {
			return string(q)
		}
	}
	if text == "" {
		return "0"
	}
	return text
}
