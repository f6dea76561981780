package oracle

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

func (k kind) baseName() string { return k.basePath[strings.LastIndex(k.basePath, "/")+1:] }

// queries are the parameters of list, watch, delete and deletecollection, right
// and wrong. What is right finds the base object alone.
func (k kind) queries() (out []request) {
	only := "fieldSelector=" + url.QueryEscape("metadata.name="+k.baseName())
	q := func(method, query string) {
		out = append(out, request{name: method + " ?" + query, method: method, path: k.path + "?" + query})
	}
	for _, query := range []string{
		"limit=1", "limit=-1", "limit=0", "continue=odd", "continue=odd&resourceVersion=1", "limit=1&continue=",
		"resourceVersion=0", "resourceVersion=0&resourceVersionMatch=NotOlderThan", "resourceVersion=0&resourceVersionMatch=Exact",
		"resourceVersion=1&resourceVersionMatch=Odd", "resourceVersionMatch=NotOlderThan", "resourceVersion=-1",
		"resourceVersion=1&resourceVersionMatch=Exact&continue=odd", "sendInitialEvents=true", "sendInitialEvents=odd", "allowWatchBookmarks=true",
		"timeoutSeconds=a", "timeoutSeconds=5", "pretty=true", "labelSelector=a", "labelSelector=" + url.QueryEscape("a in (b,c)"),
		"labelSelector=" + url.QueryEscape("!a"), "labelSelector=" + url.QueryEscape("a in b"), "labelSelector=" + url.QueryEscape("Bad Key=b"),
		"labelSelector=" + url.QueryEscape("a="+strings.Repeat("b", 64)), "labelSelector=" + url.QueryEscape("a>b"), "labelSelector=" + url.QueryEscape("a>1,a<3"),
	} {
		q("GET", only+"&"+query)
	}
	for _, query := range []string{
		"fieldSelector=metadata.name", "fieldSelector=" + url.QueryEscape("metadata.name in (a)"), "fieldSelector=" + url.QueryEscape("metadata.name=a,metadata.name=b"),
		"fieldSelector=" + url.QueryEscape("spec.odd!=a"), "fieldSelector=" + url.QueryEscape("metadata.labels.a=b"), "fieldSelector=" + url.QueryEscape("metadata.namespace=elsewhere"),
		"fieldSelector=%2C", "fieldSelector=" + url.QueryEscape(`metadata.name=a\b`), "labelSelector=%2C", "labelSelector=" + strings.Repeat("a", 64),
		"watch=true&resourceVersion=a", "watch=true&resourceVersionMatch=Exact", "watch=true&resourceVersion=1&resourceVersionMatch=NotOlderThan",
		"watch=true&sendInitialEvents=true", "watch=true&sendInitialEvents=true&resourceVersionMatch=Exact", "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=a",
		"watch=true&fieldSelector=odd%3Da", "watch=true&labelSelector=" + url.QueryEscape("a in b"), "watch=true&continue=a", "watch=true&limit=a",
	} {
		if strings.HasPrefix(query, "watch") {
			query += "&timeoutSeconds=1"
		}
		q("GET", query)
	}
	labels := k.resource.FieldLabels()
	slices.Sort(labels)
	for _, label := range labels {
		q("GET", only+url.QueryEscape(","+label+"!=odd"))
		q("GET", only+url.QueryEscape(","+label+"=odd"))
	}
	d := func(method, path, name, query string, body any) {
		out = append(out, request{name: "delete " + method + " " + name + " ?" + query, method: "DELETE", path: path + "?" + query, body: body})
	}
	for _, at := range []struct{ name, path, query string }{{"one", k.basePath, "dryRun=All"}, {"all", k.path, "dryRun=All&" + only}} {
		for _, query := range []string{"", "propagationPolicy=Odd", "propagationPolicy=Foreground", "propagationPolicy=Orphan", "orphanDependents=true", "orphanDependents=odd",
			"orphanDependents=true&propagationPolicy=Orphan", "gracePeriodSeconds=-1", "gracePeriodSeconds=a", "gracePeriodSeconds=5", "dryRun=Odd", "ignoreStoreReadErrorWithClusterBreakingPotential=true"} {
			d("query", at.path, at.name, strings.TrimSuffix(at.query+"&"+query, "&"), nil)
		}
		for _, body := range []string{`{"dryRun":["All"]}`, `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"]}`, `{"kind":"Odd","apiVersion":"v1","dryRun":["All"]}`, `{"kind":"DeleteOptions","apiVersion":"odd/v1","dryRun":["All"]}`,
			`{"propagationPolicy":"Odd","dryRun":["All"]}`, `{"dryRun":["Odd"]}`, `{"odd":true,"dryRun":["All"]}`, `{"gracePeriodSeconds":"a","dryRun":["All"]}`, `{`, `[]`, `"a"`,
			`{"preconditions":{"resourceVersion":"1"},"dryRun":["All"]}`, `{"orphanDependents":true,"propagationPolicy":"Orphan","dryRun":["All"]}`} {
			d("body "+body, at.path, at.name, at.query, json.RawMessage(body))
		}
	}
	d("bad field", k.path, "all", "dryRun=All&fieldSelector=odd%3Da", nil)
	d("bad label", k.path, "all", "dryRun=All&labelSelector="+url.QueryEscape("a in b"), nil)
	d("bad limit", k.path, "all", "dryRun=All&limit=a", nil)
	return out
}

const (
	asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asPart  = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	asParts = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

// views are the forms in which an object or a list may be asked for.
func (k kind) views() (out []request) {
	only := "fieldSelector=" + url.QueryEscape("metadata.name="+k.baseName())
	g := func(name, path, accept string) {
		out = append(out, request{name: "view " + name, method: "GET", path: path, accept: accept})
	}
	for _, include := range []string{"", "Metadata", "Object", "Odd"} {
		g("get table "+include, k.basePath+"?includeObject="+include, asTable)
		g("list table "+include, k.path+"?includeObject="+include+"&"+only, asTable)
	}
	for name, accept := range map[string]string{
		"table beta": strings.Replace(asTable, "v=v1", "v=v1beta1", 1), "table odd version": strings.Replace(asTable, "v=v1", "v=v9", 1),
		"table odd group": strings.Replace(asTable, "g=meta", "g=odd", 1), "odd form": strings.Replace(asTable, "Table", "Odd", 1),
		"part beta": strings.Replace(asPart, "v=v1", "v=v1beta1", 1), "part": asPart, "parts": asParts, "any": "*/*", "any application": "application/*",
		"table or json": asTable + ",application/json", "odd or json": "text/odd,application/json", "odd text": "text/odd", "empty form": "application/json;as=;v=;g=",
		"yaml": "application/yaml", "odd charset": "application/json;charset=odd", "stream": "application/json;stream=watch", "cbor": "application/cbor", "nothing": ";",
	} {
		g("get "+name, k.basePath, accept)
		g("list "+name, k.path+"?"+only, accept)
	}
	if full := k.full(); full != nil {
		out = append(out, request{name: "view maximal table", method: "POST", path: k.path + "?dryRun=All", accept: asTable, body: full})
	}
	slices.SortFunc(out, func(a, b request) int { return strings.Compare(a.name, b.name) })
	return out
}

// misfits are bodies, types, methods and paths that do not fit.
func (k kind) misfits() (out []request) {
	r := func(name, method, path, contentType, body string) {
		req := request{name: "misfit " + name, method: method, path: path, contentType: contentType}
		if body != "" {
			req.body = json.RawMessage(body)
		}
		out = append(out, req)
	}
	one, all := k.basePath+"?dryRun=All", k.path+"?dryRun=All"
	valid := string(encode(k.valid))
	for _, body := range []string{"", "{}", "[]", "null", `"a"`, "7", "{", `{"kind":7}`, `{"metadata":7}`, `{"metadata":{"name":7}}`, `{"metadata":{"labels":["a"]}}`,
		`{"kind":"Odd","apiVersion":"v1"}`, `{"apiVersion":"a/b/c"}`, `{"metadata":{"name":"a"}} {}`, `{"spec":"a"}`} {
		r("create "+body, "POST", all, "", body)
		r("update "+body, "PUT", one, "", body)
	}
	for _, typ := range []string{"text/odd", "application/yaml", "application/vnd.kubernetes.protobuf", "application/json;charset=utf-8", "application/cbor", "odd", "application/merge-patch+json"} {
		r("create as "+typ, "POST", all, typ, valid)
		r("update as "+typ, "PUT", one, typ, valid)
	}
	kinds := map[string]types.PatchType{"json": types.JSONPatchType, "merge": types.MergePatchType, "strategic": types.StrategicMergePatchType, "apply": types.ApplyYAMLPatchType}
	for name, typ := range kinds {
		manager := ""
		if typ == types.ApplyYAMLPatchType {
			manager = "&fieldManager=oracle"
		}
		p := func(what, query, body string) {
			r(name+" "+what, "PATCH", one+manager+query, string(typ), body)
		}
		for _, body := range []string{"", "{}", "[]", "null", `"a"`, "{", `{"metadata":7}`, `{"metadata":{"name":"other"}}`, `{"metadata":{"namespace":"other"}}`, `{"kind":"Odd"}`, `{"apiVersion":"odd/v1"}`,
			`{"metadata":{"uid":"odd"}}`, `{"metadata":{"resourceVersion":"1"}}`, `{"metadata":{"resourceVersion":"a"}}`, `{"metadata":{"annotations":{"a":"b","a":"c"}}}`, `{"odd":1}`, `{"metadata":{"managedFields":[]}}`,
			`{"$patch":"delete"}`, `{"$patch":"odd"}`, `{"$patch":"replace"}`, `{"metadata":{"$retainKeys":["a"]}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}`, `{"metadata":{"$setElementOrder/finalizers":["a"]}}`} {
			p(body, "", body)
		}
		p("odd force", "&force=odd", "{}")
		p("force", "&force=true", "{}")
		p("odd dry run", "&dryRun=Odd", "{}")
		p("long manager", "&fieldManager="+strings.Repeat("a", 129), "{}")
		p("unprintable manager", "&fieldManager=%01", "{}")
		for _, v := range []string{"Strict", "Warn", "Ignore", "Odd"} {
			for _, body := range []string{`{"odd":1}`, `{"metadata":{"annotations":{"a":"b","a":"c"}}}`, `[{"op":"add","path":"/odd","value":1}]`, `[{"op":"add","op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`} {
				if (body[0] == '[') == (typ == types.JSONPatchType) {
					p(v+" "+body, "&fieldValidation="+v, body)
				}
			}
		}
	}
	for _, body := range []string{`[{"op":"odd","path":"/metadata"}]`, `[{"op":"test","path":"/metadata/name","value":"odd"}]`, `[{"op":"remove","path":"/odd"}]`, `[{"op":"replace","path":"/odd","value":1}]`,
		`[{"op":"add","path":"/odd/deep","value":1}]`, `[{"op":"add","path":"","value":{}}]`, `[{"op":"add"}]`, `[{}]`, `[7]`, `[{"op":"move","from":"/odd","path":"/metadata"}]`, `[{"op":"copy","from":"/metadata/name","path":"/metadata/annotations"}]`,
		`[{"op":"replace","path":"/kind","value":"Odd"}]`, `[{"op":"replace","path":"/metadata/name","value":"other"}]`, `[{"op":"remove","path":"/metadata"}]`, `[{"op":"add","path":"/metadata/labels","value":{"a":7}}]`} {
		r("json "+body, "PATCH", one, string(types.JSONPatchType), body)
	}
	head := `"apiVersion":"` + k.valid["apiVersion"].(string) + `","kind":"` + k.valid["kind"].(string) + `"`
	for name, body := range map[string]string{"alone": `{` + head + `}`, "named": `{` + head + `,"metadata":{"name":"` + k.baseName() + `"}}`, "labelled": `{` + head + `,"metadata":{"labels":{"a":"b"}}}`,
		"unknown": `{` + head + `,"odd":1}`, "owned": `{` + head + `,"metadata":{"managedFields":[{}]}}`, "other name": `{` + head + `,"metadata":{"name":"other"}}`, "yaml": "a: b\nc: [d", "uid": `{` + head + `,"metadata":{"uid":"odd"}}`} {
		for _, query := range []string{"", "&fieldManager=oracle", "&fieldManager=oracle&force=true", "&fieldManager=oracle&fieldValidation=Strict"} {
			r("apply "+name+" "+query, "PATCH", one+query, string(types.ApplyYAMLPatchType), body)
		}
		r("apply absent "+name, "PATCH", k.path+"/absent?dryRun=All&fieldManager=oracle", string(types.ApplyYAMLPatchType), body)
	}
	for name, typ := range map[string]string{"no": "", "odd": "text/odd", "plain": "application/json", "yaml": "application/yaml", "cbor": "application/apply-patch+cbor"} {
		r("patch of "+name+" type", "PATCH", one, typ, "{}")
	}
	for _, typ := range kinds {
		r("patch absent "+string(typ), "PATCH", k.path+"/absent?dryRun=All", string(typ), "{}")
	}
	for _, v := range []string{"Strict", "Warn", "Ignore", "Odd"} {
		odd := with(k.valid, []string{"odd"}, "x")
		out = append(out, request{name: "misfit update unknown " + v, method: "PUT", path: one + "&fieldValidation=" + v, body: odd})
	}
	r("post to object", "POST", one, "", valid)
	r("put to all", "PUT", all, "", valid)
	r("patch all", "PATCH", all, string(types.MergePatchType), "{}")
	r("odd method", "ODD", one, "", "")
	r("options", "OPTIONS", one, "", "")
	r("deep path", "GET", k.basePath+"/odd/deep", "", "")
	r("put odd subresource", "PUT", k.basePath+"/odd", "", valid)
	r("other manager create", "POST", all+"&fieldManager=%01", "", valid)
	r("odd dry run create", "POST", k.path+"?dryRun=All&dryRun=Odd", "", valid)
	slices.SortFunc(out, func(a, b request) int { return strings.Compare(a.name, b.name) })
	return out
}

// subresources are asked in every way, rightly and wrongly.
func (k kind) subresources() (out []request) {
	for _, s := range k.resource.Subresources() {
		switch s.Name {
		case "exec", "attach", "portforward", "proxy", "log":
			continue // other tests: they need a node
		}
		path := k.basePath + "/" + s.Name
		r := func(name, method, contentType, body string) {
			req := request{name: "sub " + s.Name + " " + name, method: method, path: path + "?dryRun=All&fieldManager=oracle", contentType: contentType}
			if body != "" {
				req.body = json.RawMessage(body)
			}
			out = append(out, req)
		}
		r("get", "GET", "", "")
		out = append(out, request{name: "sub " + s.Name + " get table", method: "GET", path: path, accept: asTable},
			request{name: "sub " + s.Name + " get part", method: "GET", path: path, accept: asPart},
			request{name: "sub " + s.Name + " of absent", method: "GET", path: k.path + "/absent/" + s.Name},
			request{name: "sub " + s.Name + " put as it is", method: "PUT", path: path + "?dryRun=All", change: &change{[]string{"metadata", "labels"}, map[string]any{"a": "b"}}})
		for _, method := range []string{"POST", "PUT"} {
			for _, body := range []string{"", "{", "{}", "[]", `{"kind":"Odd","apiVersion":"v1"}`, `{"metadata":{"name":"` + k.baseName() + `"}}`, `{"metadata":{"name":"other"}}`, `{"metadata":{"name":"` + k.baseName() + `","uid":"odd"}}`,
				`{"metadata":{"name":"` + k.baseName() + `","resourceVersion":"1"}}`, `{"metadata":{"name":"` + k.baseName() + `"},"spec":{"replicas":3}}`, `{"metadata":{"name":"` + k.baseName() + `"},"spec":{"replicas":-3}}`,
				`{"metadata":{"name":"` + k.baseName() + `"},"spec":{"replicas":"a"}}`, `{"metadata":{"name":"` + k.baseName() + `"},"odd":1}`, `{"metadata":{"name":"` + k.baseName() + `"},"target":{"name":"a"}}`} {
				if s.Name == "token" && method == "POST" && body != "" && body != "{" && !strings.Contains(body, "odd") && !strings.Contains(body, "other") && !strings.Contains(body, "Odd") {
					continue // a token is no answer twice
				}
				r(method+" "+body, method, "", body)
			}
		}
		for name, typ := range map[string]types.PatchType{"json": types.JSONPatchType, "merge": types.MergePatchType, "strategic": types.StrategicMergePatchType, "apply": types.ApplyYAMLPatchType} {
			for _, body := range []string{"{", "{}", `{"spec":{"replicas":3}}`, `{"spec":{"replicas":-3}}`, `{"metadata":{"labels":{"a":"b"}}}`, `{"status":{"odd":1}}`, `{"status":7}`, `{"kind":"Odd"}`,
				`{"apiVersion":"` + k.valid["apiVersion"].(string) + `","kind":"` + k.valid["kind"].(string) + `","metadata":{"labels":{"a":"b"}}}`,
				`{"apiVersion":"autoscaling/v1","kind":"Scale","spec":{"replicas":3}}`} {
				r(name+" "+body, "PATCH", string(typ), body)
			}
		}
		r("json replicas", "PATCH", string(types.JSONPatchType), `[{"op":"replace","path":"/spec/replicas","value":3}]`)
		r("json odd", "PATCH", string(types.JSONPatchType), `[{"op":"replace","path":"/spec/odd","value":3}]`)
	}
	slices.SortFunc(out, func(a, b request) int { return strings.Compare(a.name, b.name) })
	return out
}
