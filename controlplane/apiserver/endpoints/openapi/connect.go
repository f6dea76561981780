package openapi

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"knarr/controlplane/apiserver/registry"
)

// flows are the descriptions of the methods of a subresource that carries a stream.
var flows = map[string][]string{
	"attach": {"get", "post"}, "exec": {"get", "post"}, "portforward": {"get", "post"},
	"proxy": {"get", "put", "post", "delete", "options", "head", "patch"},
}

// connect adds the paths of a subresource that connects a client to something
// else: what it says is text, and its options are parameters.
func (e *endpoint) connect(out object, path string, sub registry.Sub) {
	options := e.b.options(typeOf(sub.Kind))
	add := func(path, suffix string, more ...object) {
		item := object{"parameters": slices.Concat(e.pathNames(true), more, options)}
		for _, method := range flows[sub.Name] {
			op := e.describe("connect"+e.version()+title1(method)+e.scope+e.name+e.sub+suffix,
				"connect "+strings.ToUpper(method)+" requests to "+sub.Name+" of "+e.name, "connect")
			e.b.answer(op, "connect", object{"type": "string"}, anything, anything)
			item[method] = op
		}
		out[path] = item
	}
	add(path, "")
	if sub.Name == "proxy" {
		add(path+"/{path}", "WithPath", e.b.parameter("path", "path", "string", "path to the resource"))
	}
}

// log adds the path of a log, which is text however it is asked for.
func (e *endpoint) log(out object, path string) {
	op := e.describe("read"+e.version()+e.scope+e.name+e.sub, "read log of the specified "+e.name, "get")
	e.b.answer(op, "get", object{"type": "string"}, anything, append([]string{"text/plain"}, media...))
	out[path] = object{"get": op, "parameters": append(e.pathParameters(true), e.b.options(typeOf(e.gvk.GroupVersion().WithKind("PodLogOptions")))...)}
}

// options are the query parameters that fill a struct of options.
func (b *builder) options(t reflect.Type) []object {
	texts := docs(t)
	out := map[string]object{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		of := f.Type
		if of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
			of = of.Elem()
		}
		if name == "" || of.Kind() == reflect.Struct {
			continue
		}
		out[name] = b.parameter(name, "query", cmp.Or(map[reflect.Kind]string{
			reflect.Bool: "boolean", reflect.Int32: "integer", reflect.Int64: "integer",
		}[of.Kind()], "string"), texts[name])
	}
	var sorted []object
	for _, name := range slices.Sorted(maps.Keys(out)) {
		sorted = append(sorted, out[name])
	}
	return sorted
}
