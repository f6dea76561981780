package extension_test

import (
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const twoVersions = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: foos.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: foos, kind: Foo}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {a: {type: string}, old: {type: string}}}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {a: {type: string}, new: {type: string, default: "yes"}}}}}
`

func foos(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "foos"}
}

// TestVersions: an object written in one version is read and watched in the
// other, pruned by that one's schema, and stays when the versions swap places.
func TestVersions(t *testing.T) {
	in(t, func(c *cluster) {
		c.define(twoVersions)
		v1, v2 := c.dynamic.Resource(foos("v1")), c.dynamic.Resource(foos("v2"))
		w, err := v2.Watch(c.ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		if _, err := v1.Create(c.ctx, fromYAML(t, "{apiVersion: example.com/v1, kind: Foo, metadata: {name: x}, a: b, old: o}"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		got, err := v2.Get(c.ctx, "x", metav1.GetOptions{})
		if err != nil || got.GetAPIVersion() != "example.com/v2" || got.Object["a"] != "b" || got.Object["old"] != nil {
			t.Errorf("v2: %v %s", err, text(got))
		}
		if e := <-w.ResultChan(); e.Type != "ADDED" || text(e.Object) != text(got) {
			t.Errorf("watched %s %s\nwant %s", e.Type, text(e.Object), text(got))
		}
		swap := []byte(`[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`)
		crd, err := c.dynamic.Resource(definitions).Patch(c.ctx, "foos.example.com", types.JSONPatchType, swap, metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := text(crd.Object["status"].(map[string]any)["storedVersions"]); got != `["v1","v2"]` {
			t.Errorf("stored versions %s", got)
		}
		synctest.Wait()
		if _, open := <-w.ResultChan(); open {
			t.Error("the watch outlives what it showed")
		}
		if got, err := v2.Patch(c.ctx, "x", types.MergePatchType, []byte(`{"a":"c"}`), metav1.PatchOptions{}); err != nil || got.Object["new"] != "yes" {
			t.Errorf("patched in the new storage version: %v %s", err, text(got))
		}
		if got, err := v1.Get(c.ctx, "x", metav1.GetOptions{}); err != nil || got.Object["a"] != "c" || got.Object["new"] != nil {
			t.Errorf("v1: %v %s", err, text(got))
		}
	})
}

// TestEnd: a definition goes after its objects, and those after their
// finalizers; meanwhile nothing can be created.
func TestEnd(t *testing.T) {
	in(t, func(c *cluster) {
		c.define(twoVersions)
		v1 := c.dynamic.Resource(foos("v1"))
		if _, err := v1.Create(c.ctx, fromYAML(t, "{apiVersion: example.com/v1, kind: Foo, metadata: {name: x, finalizers: [example.com/f]}}"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := c.dynamic.Resource(definitions).Delete(c.ctx, "foos.example.com", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := c.condition("foos.example.com", "Terminating", "True"); got["reason"] != "InstanceDeletionInProgress" {
			t.Errorf("condition %v", got)
		}
		_, err := v1.Create(c.ctx, fromYAML(t, "{apiVersion: example.com/v1, kind: Foo, metadata: {name: z}}"), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "create not allowed while custom resource definition is terminating") {
			t.Errorf("create: %v", err)
		}
		if x, err := v1.Get(c.ctx, "x", metav1.GetOptions{}); err != nil || x.GetDeletionTimestamp() == nil {
			t.Errorf("object: %v %v", x, err)
		}
		if _, err := v1.Patch(c.ctx, "x", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := c.dynamic.Resource(definitions).Get(c.ctx, "foos.example.com", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("definition: %v", err)
		}
		if _, err := v1.List(c.ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("still served: %v", err)
		}
	})
}

// TestNames: who comes second waits for the name, and gets it when it is free.
func TestNames(t *testing.T) {
	in(t, func(c *cluster) {
		c.define(twoVersions)
		second := strings.NewReplacer("foos", "bars").Replace(twoVersions) // plural bars, kind Foo
		if _, err := c.dynamic.Resource(definitions).Create(c.ctx, fromYAML(t, second), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := c.condition("bars.example.com", "NamesAccepted", "False"); got["reason"] != "ListKindConflict" || got["message"] != `"FooList" is already in use` {
			t.Errorf("condition %v", got)
		}
		if err := c.dynamic.Resource(definitions).Delete(c.ctx, "foos.example.com", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.condition("bars.example.com", "Established", "True")
	})
}

// TestApplyDefinition: server-side apply knows the schema of definitions.
func TestApplyDefinition(t *testing.T) {
	in(t, func(c *cluster) {
		crds := c.dynamic.Resource(definitions)
		for range 2 {
			if _, err := crds.Apply(c.ctx, "foos.example.com", fromYAML(t, twoVersions), metav1.ApplyOptions{FieldManager: "me"}); err != nil {
				t.Fatal(err)
			}
			c.condition("foos.example.com", "Established", "True")
		}
		bad := fromYAML(t, twoVersions)
		bad.Object["spec"].(map[string]any)["odd"] = true
		if _, err := crds.Apply(c.ctx, "foos.example.com", bad, metav1.ApplyOptions{FieldManager: "me"}); err == nil || !strings.Contains(err.Error(), ".spec.odd: field not declared in schema") {
			t.Errorf("unknown field: %v", err)
		}
	})
}
