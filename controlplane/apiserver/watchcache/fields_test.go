package watchcache

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"knarr/controlplane/apiserver/registry"
)

// A selector may be a megabyte of terms and an object's message of fields: what
// the terms ask for is looked up once for each object.
func TestSelectorOfManyTerms(t *testing.T) {
	kind := registry.Resources[slices.IndexFunc(registry.Resources, func(r registry.Resource) bool { return r.GVK().Kind == "Pod" })]
	r := newResource(&Cache{budget: &budget{limit: defaultBudget}}, kind)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a-name-that-is-longer-than-thirty-two-bytes", Labels: map[string]string{}}}
	for i := range 100 {
		pod.Labels[fmt.Sprintf("label-%d", i)] = fmt.Sprint(i)
	}
	_, message, err := r.codec.encode(pod)
	if err != nil {
		t.Fatal(err)
	}
	rec := &Record{Key: "ns/" + pod.Name, codec: r.codec, message: message}

	many := func(term, last string) string { return strings.Repeat(term+",", 1000) + last }
	field := func(s string) fields.Selector { return fields.ParseSelectorOrDie(s) }
	for _, c := range []struct {
		name   string
		query  Query
		want   bool
		allocs float64 // fewer than terms
	}{
		{"fields that differ", Query{Fields: field(many("metadata.name!=a", "metadata.namespace=ns"))}, true, 10},
		{"one field that does not", Query{Fields: field(many("metadata.name!=a", "metadata.name!="+pod.Name))}, false, 10},
		{"several fields", Query{Fields: field("metadata.name=" + pod.Name + ",metadata.namespace=ns,spec.nodeName=,metadata.name!=b,spec.nodeName!=n")}, true, 10},
		{"labels that differ", Query{Labels: parse(many("label-99!=98", "label-1=1"))}, true, 600},
		{"one label that does not", Query{Labels: parse(many("label-99!=98", "label-1=2"))}, false, 600},
		{"labels that are not there", Query{Labels: parse(many("!other", "label-1"))}, true, 600},
	} {
		m := r.matcher(&c.query)
		got, err := m.match(rec)
		if got != c.want || err != nil {
			t.Errorf("%s: %t, %v; want %t", c.name, got, err, c.want)
		}
		if n := testing.AllocsPerRun(10, func() { _, _ = m.match(rec) }); n > c.allocs {
			t.Errorf("%s: %v allocations; %v are the most", c.name, n, c.allocs)
		}
	}
}

func TestWireLabelsAsSet(t *testing.T) {
	entry := func(parts ...string) string {
		var body []byte
		for i, part := range parts {
			body = append(body, byte(i+1)<<3|2, byte(len(part)))
			body = append(body, part...)
		}
		return string(append([]byte{labelsTag, byte(len(body))}, body...))
	}
	for _, c := range []struct {
		name, message string
		want          labels.Set
	}{
		{"none", "", labels.Set{}},
		{"two", entry("a", "b") + entry("c", "d"), labels.Set{"a": "b", "c": "d"}},
		{"the last of a name counts", entry("a", "b") + entry("a", "c"), labels.Set{"a": "c"}},
		{"no value", entry("a"), labels.Set{"a": ""}},
		{"other fields", "\x0a\x01x" + entry("a", "b"), labels.Set{"a": "b"}},
		{"cut off", entry("a", "b")[:4], nil},
		{"an entry cut off", "\x5a\x02\x0a\x05", nil},
	} {
		w := wireLabels(c.message)
		if got := w.set(); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v; want %v", c.name, got, c.want)
		}
		for key := range c.want {
			if value, ok := w.Lookup(key); !ok || value != c.want[key] {
				t.Errorf("%s: %s is %q, %t; want %q", c.name, key, value, ok, c.want[key])
			}
		}
	}
}
