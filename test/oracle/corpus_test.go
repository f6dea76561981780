// Package oracle sends requests generated from the API's types to our API
// server and compares its answers with those recorded from upstream's. It reads
// testdata, and with -record asks the server named by KNARR_ORACLE and writes them.
package oracle

import (
	"encoding/json"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"knarr/controlplane/apiserver/registry"
)

const namespace = "oracle-corpus"

// A request is one case. When change is set, its body is the base object, as the
// server gave it back, with that change.
type request struct {
	name, method, path, contentType, accept string
	body                                    any
	change                                  *change
	digest                                  bool   // the answer is a large document
	until                                   string // the answer that is waited for has this
}

type change struct {
	path  []string
	value any
}

// A kind's corpus: the requests before and after its base object is created.
type kind struct {
	name           string // plural.group
	resource       registry.Resource
	valid          map[string]any
	path, basePath string
	before, after  []request
}

// most bounds the cases of a kind for each way to ask.
func most(kind, way string) int {
	n := map[string]int{"create": 120, "update": 70, "status": 40, "patch": 40, "ways": 45, "verbs": 50}[way]
	switch kind {
	case "pods":
		return 6 * n
	case "services", "persistentvolumes", "customresourcedefinitions.apiextensions.k8s.io", "deployments.apps", "jobs.batch", "configmaps":
		return 2 * n
	}
	return n
}

// corpus is every kind's requests, always the same.
func corpus(t *testing.T) (all []kind) {
	t.Helper()
	valid, seen := map[string]map[string]any{}, map[string]bool{}
	data, err := os.ReadFile(filepath.Join("testdata", "kinds.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, &valid); err != nil {
		t.Fatal(err)
	}
	for _, r := range registry.Resources {
		name := strings.TrimSuffix(r.GVR().GroupResource().String(), ".")
		if seen[name] { // a second version
			name = r.GVR().Resource + "." + r.GVR().Version + "." + r.GVR().Group
		}
		seen[name] = true
		obj, ok := valid[name]
		if !ok {
			t.Errorf("testdata/kinds.yaml has no %s", name)
		}
		if obj == nil {
			continue
		}
		all = append(all, grow(name, r, obj))
	}
	return append(all, documents(), customDocuments())
}

func grow(name string, r registry.Resource, obj map[string]any) kind {
	obj["apiVersion"], obj["kind"] = r.GVK().GroupVersion().String(), r.GVK().Kind
	meta, _ := obj["metadata"].(map[string]any)
	meta = maps.Clone(meta)
	if meta == nil {
		meta = map[string]any{}
	}
	if meta["name"] == nil && !r.IsVirtual() {
		meta["name"] = "oracle-base"
	}
	obj["metadata"] = meta
	path := "/apis/" + r.GVK().GroupVersion().String()
	if r.GVK().Group == "" {
		path = "/api/v1"
	}
	if r.Namespaced() {
		path += "/namespaces/" + namespace
	}
	path += "/" + r.GVR().Resource
	k := kind{name: name, resource: r, valid: obj, path: path}
	var all []field
	fields(reflect.TypeOf(r.New()), nil, map[reflect.Type]int{}, func(f field) {
		if !dull(name, f.path) {
			all = append(all, f)
		}
	})
	k.before = append(k.whole(), sample(name, "create", k.creates(all))...)
	if r.IsVirtual() {
		return k
	}
	k.basePath = path + "/" + meta["name"].(string)
	k.after = append(k.reads(), sample(name, "update", k.updates(all))...)
	k.after = append(k.after, sample(name, "patch", k.patches(all))...)
	k.after = append(k.after, sample(name, "ways", append(k.queries(), k.views()...))...)
	k.after = append(k.after, sample(name, "verbs", append(k.misfits(), k.subresources()...))...)
	for _, s := range r.Subresources() {
		if s.Writes && s.Name == "status" {
			k.after = append(k.after, sample(name, "status", k.statuses(all))...)
		}
	}
	return k
}

// dull says that a place is tried with ConfigMaps alone.
func dull(kind string, path []string) bool {
	i := slices.Index(path, "metadata")
	if i < 0 || i+1 == len(path) || kind == "configmaps" {
		return false
	}
	return !slices.Contains([]string{"name", "generateName", "labels", "annotations"}, path[i+1])
}

// sample keeps as many requests as the kind may have, chosen by their names.
func sample(kind, way string, all []request) []request {
	n := most(kind, way)
	if *everything || len(all) <= n {
		return all
	}
	sums := make([]uint64, len(all))
	for i, r := range all {
		h := fnv.New64a()
		h.Write([]byte(r.name))
		sums[i] = h.Sum64()
	}
	last := slices.Sorted(slices.Values(sums))[n-1]
	var chosen []request
	for i, r := range all {
		if sums[i] <= last {
			chosen = append(chosen, r)
		}
	}
	return chosen
}

func (k kind) creates(all []field) (out []request) {
	for _, f := range all {
		for _, e := range edges(f.typ, at(k.valid, f.path)) {
			out = append(out, request{name: "create " + strings.Join(f.path, ".") + "=" + e.name, method: "POST", path: k.path + "?dryRun=All", body: with(k.valid, f.path, e.value)})
		}
	}
	return out
}

func (k kind) updates(all []field) (out []request) {
	for _, f := range all {
		if f.path[0] == "status" {
			continue
		}
		for _, e := range edges(f.typ, at(k.valid, f.path)) {
			out = append(out, request{name: "update " + strings.Join(f.path, ".") + "=" + e.name, method: "PUT", path: k.basePath + "?dryRun=All", change: &change{f.path, e.value}})
		}
	}
	return out
}

func (k kind) statuses(all []field) (out []request) {
	for _, f := range all {
		if f.path[0] != "status" {
			continue
		}
		for _, e := range edges(f.typ, at(k.valid, f.path)) {
			out = append(out, request{name: "status " + strings.Join(f.path, ".") + "=" + e.name, method: "PUT", path: k.basePath + "/status?dryRun=All", change: &change{f.path, e.value}})
		}
	}
	return out
}

func (k kind) patches(all []field) (out []request) {
	for _, f := range all {
		tried := edges(f.typ, at(k.valid, f.path))
		if len(tried) < 3 || tried[2].value == absent || f.path[0] == "apiVersion" || f.path[0] == "kind" {
			continue
		}
		value, name := tried[2].value, strings.Join(f.path, ".")+"="+tried[2].name
		p := func(way, contentType, query string, body any) {
			out = append(out, request{name: way + " " + name, method: "PATCH", path: k.basePath + "?dryRun=All" + query, contentType: contentType, body: body})
		}
		one := with(nil, f.path, value)
		p("merge", string(types.MergePatchType), "", one)
		p("strategic", string(types.StrategicMergePatchType), "", one)
		p("json", string(types.JSONPatchType), "", []any{map[string]any{"op": "add", "path": "/" + strings.Join(f.path, "/"), "value": value}})
		apply := with(with(one, []string{"apiVersion"}, k.valid["apiVersion"]), []string{"kind"}, k.valid["kind"])
		p("apply", string(types.ApplyYAMLPatchType), "&fieldManager=oracle", apply)
		p("force", string(types.ApplyYAMLPatchType), "&fieldManager=oracle&force=true", apply)
	}
	return out
}

// whole are the requests about the object as a whole.
func (k kind) whole() (out []request) {
	p := func(name, query string, body any) {
		out = append(out, request{name: name, method: "POST", path: k.path + "?dryRun=All" + query, body: body})
	}
	set := func(value any, path ...string) any { return with(k.valid, path, value) }
	p("minimal", "", k.valid)
	p("nothing", "", map[string]any{"apiVersion": k.valid["apiVersion"], "kind": k.valid["kind"], "metadata": k.valid["metadata"]})
	p("no kind", "", set(absent, "kind"))
	p("wrong kind", "", set("Odd", "kind"))
	p("other kind", "", with(set("v1", "apiVersion"), []string{"kind"}, "Status"))
	p("wrong version", "", set("odd/v9", "apiVersion"))
	p("no version", "", set(absent, "apiVersion"))
	p("other namespace", "", set("elsewhere", "metadata", "namespace"))
	for _, v := range []string{"Strict", "Warn", "Ignore", "Odd"} {
		p("unknown field "+v, "&fieldValidation="+v, set("x", "odd"))
		p("duplicate field "+v, "&fieldValidation="+v, json.RawMessage(`{"metadata":{},`+string(encode(k.valid))[1:]))
	}
	p("not JSON", "", json.RawMessage("{"))
	p("dry run odd", "&dryRun=Odd", k.valid)
	if full := k.full(); full != nil {
		p("maximal", "", full)
	}
	out = append(out, request{name: "table", method: "POST", path: k.path + "?dryRun=All", accept: "application/json;as=Table;v=v1;g=meta.k8s.io", body: k.valid})
	return out
}

// full is the object of all fields that k8s.io/api brings with it.
func (k kind) full() any {
	gvk := k.resource.GVK()
	group := gvk.Group
	if group == "" {
		group = "core"
	}
	file := filepath.Join(apiModule(), "testdata", "HEAD", group+"."+gvk.Version+"."+gvk.Kind+".json")
	data, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var obj any
	if json.Unmarshal(data, &obj) != nil {
		return nil
	}
	obj = with(obj, []string{"metadata", "managedFields"}, absent)
	for _, name := range []string{"name", "namespace", "resourceVersion", "uid", "generateName"} {
		value := at(k.valid, []string{"metadata", name})
		if value == nil {
			value = absent
		}
		obj = with(obj, []string{"metadata", name}, value)
	}
	return obj
}

// reads are the requests about the base object that are no writes of it.
func (k kind) reads() (out []request) {
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	only := "fieldSelector=metadata.name%3D" + k.basePath[strings.LastIndex(k.basePath, "/")+1:]
	g := func(name, path, accept string) {
		out = append(out, request{name: name, method: "GET", path: path, accept: accept})
	}
	g("get", k.basePath, "")
	g("get table", k.basePath+"?includeObject=None", table)
	g("get partial", k.basePath, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
	g("get odd accept", k.basePath, "text/odd")
	g("get absent", k.path+"/absent", "")
	g("get odd subresource", k.basePath+"/odd", "")
	g("list", k.path+"?"+only, "")
	g("list table", k.path+"?includeObject=None&"+only, table)
	g("list odd field", k.path+"?fieldSelector=odd%3Da", "")
	g("list odd label", k.path+"?labelSelector=a%20b%3D%21", "")
	g("list odd limit", k.path+"?limit=a", "")
	g("list odd version", k.path+"?resourceVersion=a", "")
	g("list odd match", k.path+"?resourceVersionMatch=Exact", "")
	for _, s := range k.resource.Subresources() {
		if s.GetScale != nil || s.Writes {
			g("get "+s.Name, k.basePath+"/"+s.Name, "")
		}
	}
	out = append(out,
		request{name: "create again", method: "POST", path: k.path + "?dryRun=All", body: k.valid},
		request{name: "delete absent", method: "DELETE", path: k.path + "/absent?dryRun=All"},
		request{name: "delete dry", method: "DELETE", path: k.basePath + "?dryRun=All"},
		request{name: "delete other uid", method: "DELETE", path: k.basePath + "?dryRun=All", body: map[string]any{"preconditions": map[string]any{"uid": "odd"}}},
		request{name: "update old", method: "PUT", path: k.basePath + "?dryRun=All", change: &change{[]string{"metadata", "resourceVersion"}, "1"}},
		request{name: "update other uid", method: "PUT", path: k.basePath + "?dryRun=All", change: &change{[]string{"metadata", "uid"}, "odd"}},
		request{name: "update unversioned", method: "PUT", path: k.basePath + "?dryRun=All", change: &change{[]string{"metadata", "resourceVersion"}, absent}},
		request{name: "update absent", method: "PUT", path: k.path + "/absent?dryRun=All", change: &change{[]string{"metadata", "name"}, "absent"}},
	)
	return out
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return []byte(err.Error())
	}
	return data
}
