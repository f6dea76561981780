package endpoints

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/openapi3"
	"k8s.io/kube-openapi/pkg/spec3"

	"knarr/controlplane/apiserver/registry"
)

// all makes a world of the real kinds.
func newWholeWorld(t testing.TB) *world {
	return newWorldOf(t, registry.Resources)
}

// What kubectl explain, apply and diff look for in the v3 documents.
func TestOpenAPIv3ServesKubectl(t *testing.T) {
	w := newWholeWorld(t)
	root := openapi3.NewRoot(w.client.Discovery().OpenAPIV3())
	for _, gv := range []schema.GroupVersion{{Version: "v1"}, {Group: "apps", Version: "v1"}, {Group: "networking.k8s.io", Version: "v1"}} {
		doc, err := root.GVSpec(gv)
		if err != nil {
			t.Fatalf("%s: %v", gv, err)
		}
		if gv.Group != "apps" {
			continue
		}
		kind := doc.Components.Schemas["io.k8s.api.apps.v1.Deployment"]
		if kind == nil || !strings.HasPrefix(kind.Description, "Deployment enables declarative updates") || kind.Properties["spec"].AllOf == nil {
			t.Fatalf("Deployment: %+v", kind)
		}
		pod := doc.Components.Schemas["io.k8s.api.core.v1.PodSpec"]
		ext := pod.Properties["containers"].Extensions
		if ext["x-kubernetes-list-type"] != "map" || ext["x-kubernetes-patch-merge-key"] != "name" || ext["x-kubernetes-patch-strategy"] != "merge" {
			t.Errorf("containers: %v", ext)
		}
		if !patchHas(doc, "/apis/apps/v1/namespaces/{namespace}/deployments/{name}", "fieldValidation") {
			t.Error("PATCH of a deployment does not take fieldValidation")
		}
	}
	if _, err := w.client.Discovery().OpenAPISchema(); err != nil {
		t.Errorf("v2 protobuf: %v", err)
	}
	code, body, _ := w.do("GET", "/openapi/v3/apis/apps/v1", "", "", "Accept", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf")
	if code != 200 || len(body) < 1000 || body[0] == '{' {
		t.Errorf("v3 protobuf: %d, %d bytes", code, len(body))
	}
	_, _, h := w.do("GET", "/openapi/v2", "", "")
	if code, _, _ := w.do("GET", "/openapi/v2", "", "", "If-None-Match", h.Get("ETag")); code != 304 {
		t.Errorf("v2 with its ETag: %d", code)
	}
}

func patchHas(doc *spec3.OpenAPI, path, name string) bool {
	p := doc.Paths.Paths[path]
	if p == nil || p.Patch == nil {
		return false
	}
	for _, param := range p.Patch.Parameters {
		if param.Name == name {
			return true
		}
	}
	return false
}

func TestOpenAPIIndex(t *testing.T) {
	w := newWholeWorld(t)
	_, body, _ := w.do("GET", "/openapi/v3", "", "")
	var index struct {
		Paths map[string]struct {
			URL string `json:"serverRelativeURL"`
		}
	}
	if err := json.Unmarshal([]byte(body), &index); err != nil {
		t.Fatal(err)
	}
	url := index.Paths["apis/apps/v1"].URL
	code, _, h := w.do("GET", url, "", "")
	if code != 200 || h.Get("Cache-Control") != "public, immutable" {
		t.Errorf("%s: %d %v", url, code, h)
	}
	code, _, h = w.do("GET", "/openapi/v3/apis/apps/v1?hash=OLD", "", "")
	if code != 301 || h.Get("Location") != url {
		t.Errorf("an old hash: %d %v", code, h)
	}
}

func BenchmarkOpenAPIv3Core(b *testing.B) {
	w := newWholeWorld(b)
	o := w.server.table.Load().openapi
	b.ReportAllocs()
	for b.Loop() {
		clear(o.docs)
		if code, _, _ := w.do("GET", "/openapi/v3/api/v1", "", ""); code != 200 {
			b.Fatal(code)
		}
	}
}
