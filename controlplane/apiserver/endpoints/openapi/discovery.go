package openapi

import (
	"encoding/json"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"knarr/controlplane/apiserver/endpoints/mergerules"
	"knarr/controlplane/apiserver/registry"
)

// An infoPath is a path where the server describes itself.
type infoPath struct {
	path, tag, id, text string
	answer              reflect.Type // nil: a string
	kind                string       // of the answer, if it has one
	consumes, produces  []string
}

var plain = []string{"application/json"}

// infoPaths are those beside the group versions', for the groups of resources; a
// custom group's are left out.
func infoPaths(resources []registry.Resource) []infoPath {
	out := []infoPath{
		{path: "/.well-known/openid-configuration/", tag: "WellKnown", id: "getServiceAccountIssuerOpenIDConfiguration",
			text: "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'", produces: plain},
		{path: "/openid/v1/jwks/", tag: "openid", id: "getServiceAccountIssuerOpenIDKeyset",
			text: "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)", produces: []string{"application/jwk-set+json"}},
		{path: "/version/", tag: "version", id: "getCodeVersion",
			text: "get the version information for this server", answer: reflect.TypeFor[version.Info](), consumes: plain, produces: plain},
		{path: "/api/", tag: "core", id: "getCoreAPIVersions",
			text: "get available API versions", answer: reflect.TypeFor[metav1.APIVersions](), kind: "APIVersions", consumes: media, produces: media},
		{path: "/apis/", tag: "apis", id: "getAPIVersions",
			text: "get available API versions", answer: reflect.TypeFor[metav1.APIGroupList](), kind: "APIGroupList", consumes: media, produces: media},
	}
	seen := map[string]bool{"": true}
	for _, res := range resources {
		group := res.GVR().Group
		if _, custom := res.(Custom); custom || seen[group] {
			continue
		}
		seen[group] = true
		tag := tagOf(group)
		out = append(out, infoPath{path: "/apis/" + group + "/", tag: tag, id: "get" + title1(tag) + "APIGroup",
			text: "get information of a group", answer: reflect.TypeFor[metav1.APIGroup](), kind: "APIGroup", consumes: media, produces: media})
	}
	return out
}

// key is the name of the path's own document.
func (t *infoPath) key() string { return strings.Trim(t.path, "/") }

// addInfoPath puts the path among those of out.
func (b *builder) addInfoPath(out object, t *infoPath) {
	answer := object{"type": "string"}
	if t.answer != nil {
		if t.kind != "" {
			b.addKind(mergerules.Name(t.answer), Kind{"", t.kind, "v1"})
		}
		if t.kind == "APIGroupList" {
			b.addKind(mergerules.Name(reflect.TypeFor[metav1.APIGroup]()), Kind{"", "APIGroup", "v1"})
		}
		answer = object{"$ref": b.ref(b.define(t.answer))}
	}
	op := object{"tags": []string{t.tag}, "description": t.text, "operationId": t.id}
	b.answer(op, "get", answer, t.consumes, t.produces)
	out[t.path] = object{"get": op}
}

// Paths are the keys of the documents beside those of group versions.
func Paths(resources []registry.Resource) []string {
	var out []string
	for _, t := range infoPaths(resources) {
		out = append(out, t.key())
	}
	return out
}

// V3Path is the document of one of Paths.
func V3Path(key string, resources []registry.Resource) ([]byte, error) {
	b := newBuilder(true)
	paths := object{}
	for _, t := range infoPaths(resources) {
		if t.key() == key {
			b.addInfoPath(paths, &t)
		}
	}
	return b.v3Document(paths)
}

// versionPath is the discovery path of a group version.
func (b *builder) versionPath(out object, gv schema.GroupVersion) {
	tag := tagOf(gv.Group)
	root := "/apis/" + gv.Group + "/" + gv.Version + "/"
	if gv.Group == "" {
		root = "/api/" + gv.Version + "/"
	}
	b.addInfoPath(out, &infoPath{path: root, tag: tag + "_" + gv.Version, id: "get" + title1(tag) + title1(gv.Version) + "APIResources",
		text: "get available resources", answer: reflect.TypeFor[metav1.APIResourceList](), kind: "APIResourceList", consumes: media, produces: media})
}

func (b *builder) v3Document(paths object) ([]byte, error) {
	components := object{"securitySchemes": object{"BearerToken": bearer}}
	if len(b.definitions) > 0 {
		components["schemas"] = b.definitions
	}
	return json.Marshal(object{
		"openapi": "3.0.0", "info": object{"title": title, "version": release}, "paths": paths, "components": components,
	})
}
