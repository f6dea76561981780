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
	anything    = []string{"*/*"}
	customMedia = []string{"application/json", "application/yaml"}
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

// since say of old paths what to use instead.
var since = map[string]string{
	"watch":     ". deprecated: use the 'watch' parameter with a list operation instead, filtered to a single item with the 'fieldSelector' parameter.",
	"watchlist": ". deprecated: use the 'watch' parameter with a list operation instead.",
}

// operation is one method of a path.
func (e *endpoint) operation(verb, action, nameInID string) object {
	v := verbs[verb]
	name := nameInID
	if name == "" {
		name = e.name
	}
	id, collection := v.id, ""
	if verb == "deletecollection" {
		id, collection = "delete", "Collection"
	}
	text := withArticle(v.text, e.name) + since[verb]
	switch {
	case verb == "list" && (e.custom || !e.res.Supports("watch")):
		text = "list objects of kind " + e.name
	case e.sub != "" && verb == "create":
		text = withArticle("create "+strings.ToLower(e.sub)+" of a ", e.name)
	case e.sub != "":
		text = v.text + strings.ToLower(e.sub) + " of the specified " + e.name
		text = strings.Replace(text, "the specified "+strings.ToLower(e.sub), strings.ToLower(e.sub), 1)
	}
	op := e.describe(id+e.version()+collection+e.scope+name+e.sub, text, action)
	params := e.b.parameters(verb, e.queryOf(verb)...)
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
	produces, consumes := media, anything
	switch {
	case e.custom:
		produces, consumes = customMedia, customMedia
	case verb == "list" || verb == "watch" || verb == "watchlist":
		produces = append(slices.Clone(media), streamMedia...)
	}
	takes := false // a body
	switch verb {
	case "patch":
		takes, consumes, body = true, patchMedia, e.b.define(reflect.TypeFor[metav1.Patch]())
		if e.custom {
			consumes = []string{patchMedia[0], patchMedia[1], patchMedia[3]}
		}
	case "deletecollection":
		takes = !e.custom
	case "create", "update", "delete":
		takes = true
	}
	e.b.answer(op, verb, object{"$ref": e.b.ref(answer)}, consumes, produces)
	if responses := op["responses"].(object); e.custom && verb == "patch" {
		delete(responses, "201")
	}
	if takes {
		if e.b.v3 {
			content := object{"content": content(consumes, object{"$ref": e.b.ref(body)})}
			if verb != "delete" && verb != "deletecollection" {
				content["required"] = true
			}
			op["requestBody"] = content
		} else {
			p := object{"name": "body", "in": "body", "schema": object{"$ref": e.b.ref(body)}}
			if verb != "delete" && verb != "deletecollection" {
				p["required"] = true
			}
			params = append([]object{p}, params...)
		}
	}
	if len(params) > 0 {
		op["parameters"] = params
	}
	return op
}

// describe is an operation without what goes in and out.
func (e *endpoint) describe(id, text, action string) object {
	return object{
		"tags": []string{e.tag}, "description": text, "operationId": id,
		"x-kubernetes-action":             action,
		"x-kubernetes-group-version-kind": Kind{e.gvk.Group, e.gvk.Kind, e.gvk.Version},
	}
}

// version is how ids name the group version.
func (e *endpoint) version() string {
	return title1(strings.TrimSuffix(e.tag, "_"+e.res.GVR().Version)) + title1(e.res.GVR().Version)
}

// withArticle is text with its last a made fit for noun, and noun.
func withArticle(text, noun string) string {
	if before, ok := strings.CutSuffix(text, " a "); ok {
		switch {
		case strings.HasSuffix(noun, "s") && !strings.HasSuffix(noun, "ss"): // of many
			text = before + " "
		case strings.ContainsAny(noun[:1], "aeiouAEIOU"):
			text = before + " an "
		}
	}
	return text + noun
}

func content(types []string, body object) object {
	out := object{}
	for _, t := range types {
		out[t] = object{"schema": body}
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

// answer says what op takes and what it answers.
func (b *builder) answer(op object, verb string, answer object, consumes, produces []string) {
	out := object{"401": object{"description": "Unauthorized"}}
	for code, text := range codesOf(verb) {
		if b.v3 {
			out[code] = object{"description": text, "content": content(produces, answer)}
		} else {
			out[code] = object{"description": text, "schema": answer}
		}
	}
	op["responses"] = out
	if b.v3 {
		return
	}
	op["schemes"], op["produces"] = []string{"https"}, produces
	if consumes != nil {
		op["consumes"] = consumes
	}
}

// queryOf are the names of a verb's query parameters.
func (e *endpoint) queryOf(verb string) []string {
	switch {
	case e.custom && verb == "get":
		return []string{"resourceVersion"}
	case e.custom && verb == "deletecollection":
		verb = "list"
	}
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
func parameterText(verb, name string) string {
	if name == "pretty" {
		return prettyText
	}
	first := documented(metav1.PatchOptions{})
	if verb != "patch" {
		first = metav1.CreateOptions{}
	}
	for _, o := range []documented{first, metav1.ListOptions{}, metav1.DeleteOptions{}} {
		if text := o.SwaggerDoc()[name]; text != "" {
			return text
		}
	}
	return ""
}

func (b *builder) parameters(verb string, names ...string) []object {
	out := make([]object, 0, len(names))
	for _, name := range names {
		typ := "string"
		switch name {
		case "watch", "allowWatchBookmarks", "sendInitialEvents", "force", "orphanDependents", "ignoreStoreReadErrorWithClusterBreakingPotential":
			typ = "boolean"
		case "limit", "timeoutSeconds", "gracePeriodSeconds":
			typ = "integer"
		}
		out = append(out, b.parameter(name, "query", typ, parameterText(verb, name)))
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
	return append(e.pathNames(named), e.b.parameters("", "pretty")...)
}

// pathNames are the parameters that the path itself has.
func (e *endpoint) pathNames(named bool) []object {
	var out []object
	if named {
		out = append(out, e.b.parameter("name", "path", "string", "name of the "+e.gvk.Kind))
	}
	if e.res.Namespaced() {
		out = append(out, e.b.parameter("namespace", "path", "string", "object name and auth scope, such as for teams and projects"))
	}
	return out
}
