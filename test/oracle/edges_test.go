package oracle

import (
	"math"
	"reflect"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// An edge is a value worth trying, by a name that fits in a case's.
type edge struct {
	name  string
	value any
}

// absent as a value takes the field away.
var absent = any(new(int))

// scalars are the structs that are one value in JSON, and what to try for them.
var scalars = map[reflect.Type][]edge{
	quantity:                              {{"0", "0"}, {"1", "1"}, {"-1", "-1"}, {"1.5", "1.5"}, {"huge", "1e30"}, {"odd", "odd"}},
	reflect.TypeFor[intstr.IntOrString](): {{"-1", -1}, {"0", 0}, {"1", 1}, {"65536", 65536}, {"50%", "50%"}, {"150%", "150%"}, {"odd", "odd"}, {"empty", ""}, {"upper", "Bad_Name"}},
	reflect.TypeFor[metav1.Time]():        {{"time", "2001-01-01T00:00:00Z"}, {"odd", "odd"}, {"null", nil}},
	reflect.TypeFor[metav1.MicroTime]():   {{"time", "2001-01-01T00:00:00.000000Z"}, {"odd", "odd"}, {"null", nil}},
	reflect.TypeFor[metav1.Duration]():    {{"1s", "1s"}, {"-1s", "-1s"}, {"odd", "odd"}},
	reflect.TypeFor[metav1.FieldsV1]():    {{"{}", map[string]any{}}},
	reflect.TypeFor[runtime.RawExtension](): {{"{}", map[string]any{}}, {"map", map[string]any{"a": "b"}},
		{"object", map[string]any{"apiVersion": "v1", "kind": "Pod"}}, {"null", nil}},
	reflect.TypeFor[apiextensionsv1.JSON]():                         {{"1", 1}, {"odd", "odd"}, {"{}", map[string]any{}}, {"null", nil}},
	reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrArray]():       {{"{}", map[string]any{}}, {"[]", []any{}}},
	reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrBool]():        {{"{}", map[string]any{}}, {"true", true}, {"false", false}},
	reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrStringArray](): {{"{}", map[string]any{}}, {"[]", []any{}}},
}

var texts = []edge{{"absent", absent}, {"empty", ""}, {"label", "abc"}, {"upper", "Bad_Name"}, {"spaces", "a b"}, {"64", strings.Repeat("a", 64)},
	{"254", strings.Repeat("a", 254)}, {"dotted", "a.b"}, {"qualified", "example.com/abc"}, {"ip", "10.0.0.1"}, {"cidr", "10.0.0.0/8"}, {"path", "/a/../b"}, {"number", 7}}

var texts64 = []edge{{"empty", ""}, {"abc", "YWJj"}, {"odd", "odd!"}}

// edges are the values to try at a place which in the valid object holds was.
func edges(t reflect.Type, was any) []edge {
	if e, ok := scalars[t]; ok {
		return e
	}
	switch t.Kind() {
	case reflect.String:
		return texts
	case reflect.Bool:
		return []edge{{"absent", absent}, {"true", true}, {"false", false}, {"text", "true"}}
	case reflect.Int32, reflect.Int, reflect.Int64, reflect.Uint8:
		all := []edge{{"absent", absent}, {"-1", -1}, {"0", 0}, {"1", 1}, {"65536", 65536}, {"max", math.MaxInt32}, {"text", "1"}}
		if t.Kind() == reflect.Int64 {
			all = append(all, edge{"max64", math.MaxInt64})
		}
		return all
	case reflect.Float64:
		return []edge{{"-1", -1}, {"0", 0}, {"1.5", 1.5}}
	case reflect.Map:
		return mapEdges(t.Elem())
	case reflect.Slice:
		return listEdges(t.Elem(), was)
	case reflect.Struct:
		return append([]edge{{"absent", absent}, {"{}", map[string]any{}}, {"null", nil}, {"text", "a"}}, pairs(t)...)
	}
	return nil
}

func mapEdges(item reflect.Type) []edge {
	empty := edge{"{}", map[string]any{}}
	absent := edge{"absent", absent}
	key := func(name, key string, v any) edge { return edge{name, map[string]any{key: v}} }
	switch {
	case item == quantity:
		return []edge{absent, empty, key("cpu", "cpu", "1"), key("negative", "cpu", "-1"), key("fraction", "memory", "1500m"), key("unknown", "bogus", "1"),
			key("extended", "example.com/abc", "1.5"), key("huge pages", "hugepages-2Mi", "4Mi"), key("storage", "ephemeral-storage", "1Gi"), key("pods", "pods", "3")}
	case item.Kind() == reflect.String:
		return []edge{absent, empty, key("plain", "abc", "d"), key("spaces", "a b", "c d"), key("no key", "", ""), key("64", strings.Repeat("a", 64), strings.Repeat("a", 64)),
			key("qualified", "example.com/abc", "d"), key("number", "abc", 7)}
	case item.Kind() == reflect.Slice && item.Elem().Kind() == reflect.Uint8:
		return []edge{absent, empty, key("plain", "abc", "YWJj"), key("spaces", "a b", "YWJj"), key("dots", "..", "YWJj"), key("odd", "abc", "odd!")}
	case item.Kind() == reflect.Slice:
		return []edge{absent, empty, key("empty", "abc", []any{}), key("plain", "abc", []any{"a", "a"})}
	}
	return []edge{absent, empty, key("item", "abc", map[string]any{})}
}

func listEdges(item reflect.Type, was any) []edge {
	list := func(name string, v ...any) edge { return edge{name, append([]any{}, v...)} }
	all := []edge{{"absent", absent}, list("[]")}
	switch {
	case item.Kind() == reflect.Uint8:
		return texts64
	case item.Kind() == reflect.String:
		all = append(all, list("one", "abc"), list("twice", "abc", "abc"), list("upper", "Bad_Name"), list("blank", ""), list("star", "*"), list("ip", "10.0.0.1"), list("two", "abc", "*"))
	case structural(item):
		all = append(all, list("[{}]", map[string]any{}), list("[null]", nil))
		if l, ok := was.([]any); ok && len(l) > 0 {
			all = append(all, list("twice", l[0], l[0]))
		}
	case item.Kind() == reflect.Int64 || item.Kind() == reflect.Int32:
		all = append(all, list("-1", -1), list("twice", 1, 1))
	}
	return all
}

// pairs are two members of a one-of at once.
func pairs(t reflect.Type) (all []edge) {
	last := ""
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() != reflect.Pointer || !structural(f.Type) || name == "" {
			continue
		}
		if last != "" {
			all = append(all, edge{last + "+" + name, map[string]any{last: map[string]any{}, name: map[string]any{}}})
		}
		last = name
	}
	return all
}
