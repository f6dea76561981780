package extension

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/yaml"
)

const schemaOfRules = `
type: object
x-kubernetes-validations: [{rule: "self.metadata.name != 'bad'"}, {rule: "!has(self.status) || !has(self.status.count) || self.status.count < 5"}]
properties:
  spec:
    type: object
    x-kubernetes-validations: [{rule: "!has(self.a) || !has(self.b) || self.a <= self.b", messageExpression: "'a is ' + string(self.a)"}]
    properties:
      a: {type: integer, x-kubernetes-validations: [{rule: "self < 7"}]}
      b: {type: integer}
      any: {x-kubernetes-int-or-string: true, x-kubernetes-validations: [{rule: "type(self) == int"}]}
      number: {type: number, x-kubernetes-validations: [{rule: "self < 3.0"}]}
      maybe: {type: string, nullable: true, x-kubernetes-validations: [{rule: "self != 'x'"}]}
      list:
        type: array
        maxItems: 5
        x-kubernetes-list-type: map
        x-kubernetes-list-map-keys: [k]
        x-kubernetes-validations: [{rule: "self.all(e, !has(e.v) || e.v != 4)"}]
        items: {type: object, required: [k], properties: {k: {type: string}, v: {type: integer, x-kubernetes-validations: [{rule: "self != 3"}]}}}
      steps:
        type: array
        maxItems: 5
        x-kubernetes-list-type: map
        x-kubernetes-list-map-keys: [k]
        items: {type: object, required: [k], properties: {k: {type: string}, v: {type: integer, x-kubernetes-validations: [{rule: "self >= oldSelf"}]}}}
      plain: {type: array, maxItems: 5, items: {type: integer, x-kubernetes-validations: [{rule: "self != 2"}]}}
      map: {type: object, maxProperties: 5, additionalProperties: {type: integer, x-kubernetes-validations: [{rule: "self != 1"}]}}
      grows: {type: integer, x-kubernetes-validations: [{rule: "!oldSelf.hasValue() || self >= oldSelf.value()", optionalOldSelf: true}]}
      both:
        type: object
        properties: {x: {type: integer}}
        allOf: [{properties: {x: {x-kubernetes-validations: [{rule: "self != 6"}]}}}]
  status: {type: object, properties: {count: {type: integer, x-kubernetes-validations: [{rule: "self != 4"}]}}}
`

func shapeOf(t *testing.T, text string) *shape {
	t.Helper()
	props := &apiextensionsv1.JSONSchemaProps{}
	if err := yaml.Unmarshal([]byte(text), props); err != nil {
		t.Fatal(err)
	}
	s, err := kindOf(versionOf(props)).shape("v1")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// anObject is one of few, so that values come again.
func anObject(r *rand.Rand) map[string]any {
	some := func(m map[string]any, name string, v any) {
		if r.IntN(3) == 0 {
			m[name] = v
		}
	}
	n := func(most int64) int64 { return r.Int64N(most) }
	items := func() (out []any) {
		for _, k := range []string{"a", "b", "c"}[:r.IntN(4)] {
			item := map[string]any{"k": k}
			some(item, "v", n(5))
			out = append(out, item)
		}
		return out
	}
	spec := map[string]any{}
	some(spec, "a", n(8))
	some(spec, "b", n(8))
	some(spec, "any", []any{n(2), "1"}[r.IntN(2)])
	some(spec, "number", []any{n(4), float64(n(4)), 2.5}[r.IntN(3)])
	some(spec, "maybe", []any{"x", "y", nil}[r.IntN(3)])
	some(spec, "list", items())
	some(spec, "steps", items())
	some(spec, "plain", []any{n(3), n(3)})
	some(spec, "map", map[string]any{"k": n(3)})
	some(spec, "grows", n(4))
	some(spec, "both", map[string]any{"x": n(8)})
	obj := map[string]any{"kind": "Foo", "apiVersion": "example.com/v1", "metadata": map[string]any{"name": []string{"good", "bad"}[r.IntN(8)/7]}, "spec": spec}
	some(obj, "status", map[string]any{"count": n(6)})
	return obj
}

type warned int

func (w *warned) AddWarning(string, string) { *w++ }

// What is found to keep the rules is what upstream has nothing to say of, no warning either,
// whatever was asked before.
func TestKeptRules(t *testing.T) {
	s := shapeOf(t, schemaOfRules)
	if errs, _ := s.rules.Validate(t.Context(), nil, s.structural, map[string]any{"metadata": map[string]any{"name": "good"}, "spec": map[string]any{}}, nil, celconfig.RuntimeCELCostBudget); len(errs) > 0 {
		t.Fatal(errs) // a rule that is wrong
	}
	r := rand.New(rand.NewPCG(1, 2))
	counted := map[bool]int{}
	var obj, old map[string]any
	for range 1000 {
		switch r.IntN(4) {
		case 0:
			old = nil
		case 1:
			old = obj
		case 2:
			old = anObject(r)
		}
		obj = anObject(r)
		if old != nil && r.IntN(2) == 0 {
			obj["spec"] = old["spec"] // as a write of the status
		}
		var warnings warned
		ctx := warning.WithWarningRecorder(context.Background(), &warnings)
		var options []cel.Option
		var before any
		if old != nil {
			before = old
			options = append(options, cel.WithRatcheting(common.NewCorrelatedObject(obj, old, &model.Structural{Structural: s.structural})))
		}
		errs, left := s.rules.Validate(ctx, nil, s.structural, obj, before, celconfig.RuntimeCELCostBudget, options...)
		want := len(errs) == 0 && warnings == 0
		// At the budget's end, too.
		for budget, enough := range map[int64]bool{celconfig.RuntimeCELCostBudget: true, celconfig.RuntimeCELCostBudget - left: false} {
			if got := s.tree.keep(ctx, s.kept, obj, old, budget); got != (want && enough) {
				t.Fatalf("%v after %v is found to keep the rules: %t, with a budget of %d; upstream: %v, %d warnings", obj, old, got, budget, errs, warnings)
			}
		}
		counted[want]++
	}
	if counted[true] < 100 || counted[false] < 100 {
		t.Errorf("objects by whether they are good: %v", counted)
	}
}

// A write of the status asks nothing of the spec again, and one of another field nothing of
// the others.
func TestRememberedRules(t *testing.T) {
	s := shapeOf(t, schemaOfRules)
	keep := func(spec, status map[string]any) bool {
		obj := map[string]any{"metadata": map[string]any{"name": "good"}, "spec": spec, "status": status}
		return s.tree.keep(t.Context(), s.kept, obj, nil, celconfig.RuntimeCELCostBudget)
	}
	one := func() []any { return []any{map[string]any{"k": "a", "v": int64(1)}} }
	if !keep(map[string]any{"a": int64(1), "list": one()}, nil) {
		t.Fatal("a good object is found to be bad")
	}
	if len(s.kept.recent) == 0 {
		t.Fatal("nothing is remembered")
	}
	for key := range s.kept.recent { // who is believed costs too much
		s.kept.recent[key] = celconfig.RuntimeCELCostBudget
	}
	for what, spec := range map[string]map[string]any{"the same spec": {"a": int64(1), "list": one()}, "another field": {"b": int64(3), "list": one()}} {
		if keep(spec, map[string]any{"count": int64(1)}) {
			t.Errorf("%s: the rules were asked again", what)
		}
	}
	if !keep(map[string]any{"a": int64(2)}, map[string]any{"count": int64(2)}) {
		t.Error("another value is believed to be the one before")
	}
}

func TestKeptRulesAreBounded(t *testing.T) {
	var k keptRules
	key := func(i int) (k keptKey) {
		binary.BigEndian.PutUint64(k.digest[:], uint64(i))
		return k
	}
	for i := range 5 * maxKept {
		k.add(key(i), 1)
		if _, known := k.cost(key(0)); !known {
			t.Fatalf("what is used again and again is forgotten after %d others", i)
		}
	}
	if n := len(k.recent) + len(k.older); n > 2*maxKept {
		t.Errorf("%d values are remembered", n)
	}
}

func TestAppendValue(t *testing.T) {
	seen := map[string]int{}
	for i, v := range []any{nil, true, false, int64(1), 1.0, "1", "i", "", []any{}, map[string]any{}, []any{"a", "b"}, []any{"ab"}, []any{"a", []any{"b"}}, []any{[]any{"a"}, "b"},
		map[string]any{"a": "b"}, []any{"a", "b", nil}, map[string]any{"a": nil}, map[string]any{"a": "b", "c": "d"}, map[string]any{"a": map[string]any{"b": "c"}}} {
		b, ok := appendValue(nil, v)
		if !ok {
			t.Errorf("%v is not written", v)
		}
		if other, there := seen[string(b)]; there {
			t.Errorf("%v is written as value %d is", v, other)
		}
		seen[string(b)] = i
	}
	for _, v := range []any{struct{}{}, strings.Repeat("x", maxRemembered), []any{map[string]any{"a": strings.Repeat("x", maxRemembered)}}} {
		if b, ok := appendValue(nil, v); ok {
			t.Errorf("%d bytes are written of %T", len(b), v)
		}
	}
}
