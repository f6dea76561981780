// Package mergerules says which lists and maps of the built-in kinds are
// merged as a whole, as a set or by keys. It reads the table beside it, which
// its test writes from client-go's merge schema; it writes nothing.
package mergerules

import (
	_ "embed"
	"reflect"
	"strings"
	"sync"
)

//go:embed rules.txt
var text string

// A Rule is how one field, or one type, is merged. The zero Rule is the
// default: lists are atomic, maps and structs are merged field by field.
type Rule struct {
	Atomic   bool // a map or struct owned as a whole
	Granular bool // field by field although its type is atomic
	Set      bool // a list whose items are its keys
	Keys     []Key
}

// A Key is a field that names an item of a list. An item may leave it out, which
// counts as Default, unless it must be there.
type Key struct {
	Name, Default string
	Must          bool
}

// A Type is the rules of one struct.
type Type struct {
	Atomic bool
	Fields map[string]Rule // by JSON name; only those with a rule
}

var types = sync.OnceValue(func() map[string]Type {
	out := map[string]Type{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		t := Type{Fields: map[string]Rule{}}
		for word := range strings.FieldsSeq(rest) {
			if word == "atomic" {
				t.Atomic = true
				continue
			}
			field, rule, _ := strings.Cut(word, "=")
			t.Fields[field] = parse(rule)
		}
		out[name] = t
	}
	// client-go does not know these groups.
	for _, name := range []string{"apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionStatus", "kube-aggregator.pkg.apis.apiregistration.v1.APIServiceStatus"} {
		out["io.k8s."+name] = Type{Fields: map[string]Rule{"conditions": {Keys: []Key{{Name: "type"}}}}}
	}
	out["io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"] = Type{
		Fields: map[string]Rule{"x-kubernetes-validations": {Keys: []Key{{Name: "rule"}}}}}
	return out
})

func parse(rule string) (r Rule) {
	switch rule {
	case "atomic":
		r.Atomic = true
	case "granular":
		r.Granular = true
	case "set":
		r.Set = true
	default:
		for key := range strings.SplitSeq(rule, ",") {
			name, def, _ := strings.Cut(key, "~")
			name, must := strings.CutSuffix(name, "!")
			r.Keys = append(r.Keys, Key{name, def, must})
		}
	}
	return r
}

// Of are the rules of a Go type.
func Of(t reflect.Type) Type { return types()[Name(t)] }

// Name is a Go type as schemas call it: k8s.io/api/core/v1.Pod is
// io.k8s.api.core.v1.Pod.
func Name(t reflect.Type) string {
	host, path, _ := strings.Cut(t.PkgPath(), "/")
	labels := strings.Split(host, ".")
	for i, j := 0, len(labels)-1; i < j; i, j = i+1, j-1 {
		labels[i], labels[j] = labels[j], labels[i]
	}
	return strings.Join(labels, ".") + "." + strings.ReplaceAll(path, "/", ".") + "." + t.Name()
}
