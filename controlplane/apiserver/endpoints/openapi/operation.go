package openapi

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"knarr/controlplane/apiserver/registry"
)

func typeOf(gvk schema.GroupVersionKind) reflect.Type { return scheme.Scheme.AllKnownTypes()[gvk] }

var (
	media       = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	streamMedia = []string{"application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"}
	patchMedia  = []string{"application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml"}
)

// ids and words of the verbs.
var verbs = map[string]struct{ id, text string }{
	"get": {"read", "read the specified "}, "list": {"list", "list or watch objects of kind "},
	"create": {"create", "create a "}, "update": {"replace", "replace the specified "},
	"patch": {"patch", "partially update the specified "}, "delete": {"delete", "delete a "},
	"deletecollection": {"deleteCollection", "delete collection of "},
	"watch":            {"watch", "watch changes to an object of kind "}, "watchlist": {"watch", "watch individual changes to a list of "},
}

// operation is one method of a path.
func (e *endpoint) operation(verb, action, nameInID string) object {
	v := verbs[verb]
	name := nameInID
	if name == "" {
		name = e.name
	}
	group := strings.TrimSuffix(e.tag, "_"+e.res.GVR().Version)
	gvTitle := title1(group) + title1(e.res.GVR().Version)
	id, collection := v.id, ""
	if verb == "deletecollection" {
		id, collection = "delete", "Collection"
	}
	text := v.text + e.name
	if e.sub != "" {
		text = v.text + strings.ToLower(e.sub) + " of the specified " + e.name
		text = strings.Replace(text, "the specified "+strings.ToLower(e.sub), strings.ToLower(e.sub), 1)
	}
	op := object{
		"tags": []string{e.tag}, "description": text,
		"operationId":                     id + gvTitle + collection + e.scope + name + e.sub,
		"x-kubernetes-action":             action,
		"x-kubernetes-group-version-kind": Kind{e.gvk.Group, e.gvk.Kind, e.gvk.Version},
	}
	params := e.b.parameters(queryOf(verb)...)
	body, answer := e.body, e.body
	if verb == "list" {
		answer = e.list
	}
	if verb == "watch" || verb == "watchlist" {
		answer = e.b.define(reflect.TypeFor[metav1.WatchEvent]())
	}
	if verb == "delete" || verb == "deletecollection" {
		if verb == "deletecollection" || !registry.AnswersDeleted(e.res.GVR().GroupResource()) || e.name == "Namespace" {
			answer = e.b.define(reflect.TypeFor[metav1.Status]())
		}
		body = e.b.define(reflect.TypeFor[metav1.DeleteOptions]())
	}
	produces := media
	if verb == "list" || verb == "watch" || verb == "watchlist" {
		produces = append(slices.Clone(media), streamMedia...)
	}
	var consumes []string
	switch verb {
	case "patch":
		consumes, body = patchMedia, e.b.define(reflect.TypeFor[metav1.Patch]())
		if _, custom := e.res.(Custom); custom {
			consumes = []string{patchMedia[0], patchMedia[1], patchMedia[3]}
		}
	case "create", "update", "delete", "deletecollection":
		consumes = []string{"*/*"}
	}
	if e.b.v3 {
		op["responses"] = e.b.responsesV3(verb, answer, produces)
		if consumes != nil {
			content := object{"content": e.b.content(consumes, body)}
			if verb != "delete" && verb != "deletecollection" {
				content["required"] = true
			}
			op["requestBody"] = content
		}
	} else {
		op["responses"] = e.b.responsesV2(verb, answer)
		op["produces"], op["schemes"] = produces, []string{"https"}
		if consumes == nil {
			consumes = []string{"*/*"}
		} else {
			p := object{"name": "body", "in": "body", "schema": object{"$ref": e.b.ref(body)}}
			if verb != "delete" && verb != "deletecollection" {
				p["required"] = true
			}
			params = append([]object{p}, params...)
		}
		op["consumes"] = consumes
	}
	if len(params) > 0 {
		op["parameters"] = params
	}
	return op
}

func (b *builder) content(types []string, body string) object {
	out := object{}
	for _, t := range types {
		out[t] = object{"schema": object{"$ref": b.ref(body)}}
	}
	return out
}

func codesOf(verb string) map[string]string {
	switch verb {
	case "create":
		return map[string]string{"200": "OK", "201": "Created", "202": "Accepted"}
	case "update", "patch":
		return map[string]string{"200": "OK", "201": "Created"}
	case "delete":
		return map[string]string{"200": "OK", "202": "Accepted"}
	}
	return map[string]string{"200": "OK"}
}

func (b *builder) responsesV3(verb, answer string, produces []string) object {
	out := object{"401": object{"description": "Unauthorized"}}
	for code, text := range codesOf(verb) {
		out[code] = object{"description": text, "content": b.content(produces, answer)}
	}
	return out
}

func (b *builder) responsesV2(verb, answer string) object {
	out := object{"401": object{"description": "Unauthorized"}}
	for code, text := range codesOf(verb) {
		out[code] = object{"description": text, "schema": object{"$ref": b.ref(answer)}}
	}
	return out
}

// queryOf are the names of a verb's query parameters.
func queryOf(verb string) []string {
	switch verb {
	case "list", "watch", "watchlist":
		return []string{"allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion", "resourceVersionMatch", "sendInitialEvents", "shardSelector", "timeoutSeconds", "watch"}
	case "create", "update":
		return []string{"dryRun", "fieldManager", "fieldValidation"}
	case "patch":
		return []string{"dryRun", "fieldManager", "fieldValidation", "force"}
	case "delete":
		return []string{"dryRun", "gracePeriodSeconds", "ignoreStoreReadErrorWithClusterBreakingPotential", "orphanDependents", "propagationPolicy"}
	case "deletecollection":
		return []string{"continue", "dryRun", "fieldSelector", "gracePeriodSeconds", "ignoreStoreReadErrorWithClusterBreakingPotential", "labelSelector", "limit", "orphanDependents", "propagationPolicy", "resourceVersion", "resourceVersionMatch", "sendInitialEvents", "shardSelector", "timeoutSeconds"}
	}
	return nil
}

const prettyText = "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget)."

// texts of parameters come from the option types.
func parameterText(name string) string {
	if name == "pretty" {
		return prettyText
	}
	for _, o := range []documented{metav1.PatchOptions{}, metav1.ListOptions{}, metav1.DeleteOptions{}} {
		if text := o.SwaggerDoc()[name]; text != "" {
			return text
		}
	}
	return ""
}

func (b *builder) parameters(names ...string) []object {
	out := make([]object, 0, len(names))
	for _, name := range names {
		typ := "string"
		switch name {
		case "watch", "allowWatchBookmarks", "sendInitialEvents", "force", "orphanDependents", "ignoreStoreReadErrorWithClusterBreakingPotential":
			typ = "boolean"
		case "limit", "timeoutSeconds", "gracePeriodSeconds":
			typ = "integer"
		}
		out = append(out, b.parameter(name, "query", typ, parameterText(name)))
	}
	return out
}

func (b *builder) parameter(name, in, typ, text string) object {
	p := object{"name": name, "in": in, "description": text}
	if in == "path" {
		p["required"] = true
	}
	if b.v3 {
		p["schema"] = object{"type": typ, "uniqueItems": true}
	} else {
		p["type"], p["uniqueItems"] = typ, true
	}
	return p
}

func (e *endpoint) pathParameters(named bool) []object {
	var out []object
	if named {
		out = append(out, e.b.parameter("name", "path", "string", "name of the "+e.name))
	}
	if e.res.Namespaced() {
		out = append(out, e.b.parameter("namespace", "path", "string", "object name and auth scope, such as for teams and projects"))
	}
	return append(out, e.b.parameters("pretty")...)
}
