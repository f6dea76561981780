package extension_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"knarr/internal/apitest"
)

// A cluster is a server for one test and clients of it.
type cluster struct {
	*testing.T
	ctx     context.Context
	server  *apitest.Server
	dynamic dynamic.Interface
}

// in runs a test against a server of its own, in fake time.
func in(t *testing.T, test func(c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		config := s.Config()
		config.ContentConfig.AcceptContentTypes, config.ContentConfig.ContentType = "application/json", "application/json"
		d, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		test(&cluster{t, ctx, s, d})
	})
}

func fromYAML(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = u.UnmarshalJSON(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

var definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// define creates a definition and waits until it is established.
func (c *cluster) define(text string) {
	c.Helper()
	u := fromYAML(c, text)
	if _, err := c.dynamic.Resource(definitions).Create(c.ctx, u, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	c.condition(u.GetName(), "Established", "True")
}

// condition waits until a definition has a condition.
func (c *cluster) condition(name, typ, status string) map[string]any {
	c.Helper()
	for {
		synctest.Wait()
		u, err := c.dynamic.Resource(definitions).Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			c.Fatal(err)
		}
		list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, item := range list {
			if m := item.(map[string]any); m["type"] == typ && m["status"] == status {
				return m
			}
		}
		select {
		case <-time.After(time.Second):
		case <-c.ctx.Done():
			c.Fatalf("%s: no condition %s=%s in %v", name, typ, status, list)
		}
	}
}

var crontabs = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "crontabs"}

const cronTab = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crontabs.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: crontabs, kind: CronTab, shortNames: [ct], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            x-kubernetes-validations:
            - {rule: "!has(oldSelf.fixed) || self.fixed == oldSelf.fixed", message: fixed is fixed}
            properties:
              cronSpec: {type: string, pattern: '^[^x]*$'}
              replicas: {type: integer, default: 1, maximum: 10}
              fixed: {type: string, maxLength: 10}
              list: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}, v: {type: string}}}}
          status:
            type: object
            properties: {replicas: {type: integer}, selector: {type: string}}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    selectableFields: [{jsonPath: .spec.cronSpec}]
    additionalPrinterColumns:
    - {name: Spec, type: string, jsonPath: .spec.cronSpec}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas, priority: 1}
`

func cron(t testing.TB, name, spec string) *unstructured.Unstructured {
	return fromYAML(t, "{apiVersion: example.com/v1, kind: CronTab, metadata: {name: "+name+"}, spec: "+spec+"}")
}

func TestLife(t *testing.T) {
	in(t, func(c *cluster) {
		c.define(cronTab)
		tabs := c.dynamic.Resource(crontabs).Namespace("default")
		w, err := tabs.Watch(c.ctx, metav1.ListOptions{})
		if err != nil {
			c.Fatal(err)
		}
		defer w.Stop()
		made, err := tabs.Create(c.ctx, cron(t, "a", "{cronSpec: '* *', unknown: 1}"), metav1.CreateOptions{})
		if err != nil {
			c.Fatal(err)
		}
		if got, want := text(made.Object["spec"]), `{"cronSpec":"* *","replicas":1}`; got != want {
			t.Errorf("pruned and defaulted: %s, want %s", got, want)
		}
		if made.GetGeneration() != 1 || made.GetUID() == "" || made.GetResourceVersion() == "" {
			t.Errorf("metadata %v", made.Object["metadata"])
		}
		if e := <-w.ResultChan(); e.Type != "ADDED" || text(e.Object) != text(made) {
			t.Errorf("watch: %s %s\nwant %s", e.Type, text(e.Object), text(made))
		}
		large := cron(t, "large", "{}")
		large.SetAnnotations(map[string]string{"a": strings.Repeat("x", 200_000)})
		large, err = tabs.Create(c.ctx, large, metav1.CreateOptions{})
		if err != nil {
			c.Fatal(err)
		}
		if e := <-w.ResultChan(); e.Type != "ADDED" || text(e.Object) != text(large) { // sent in parts
			t.Errorf("watch: %s of a large object is another", e.Type)
		}
		if err := tabs.Delete(c.ctx, "large", metav1.DeleteOptions{}); err != nil {
			c.Fatal(err)
		}
		<-w.ResultChan()
		got, err := tabs.Get(c.ctx, "a", metav1.GetOptions{})
		if err != nil || text(got) != text(made) {
			t.Errorf("get: %v %s\nwant %s", err, text(got), text(made))
		}
		list, err := tabs.List(c.ctx, metav1.ListOptions{FieldSelector: "spec.cronSpec=* *"})
		if err != nil || len(list.Items) != 1 || text(list.Items[0].Object) != text(made) {
			t.Errorf("list: %v %v", err, list)
		}
		patched, err := tabs.Patch(c.ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":3},"status":{"replicas":9}}`), metav1.PatchOptions{})
		if err != nil || patched.GetGeneration() != 2 || patched.Object["status"] != nil {
			t.Errorf("patch: %v %s", err, text(patched))
		}
		st, err := tabs.Patch(c.ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":5},"status":{"replicas":9}}`), metav1.PatchOptions{}, "status")
		if err != nil || st.GetGeneration() != 2 || text(st.Object["status"]) != `{"replicas":9}` || text(st.Object["spec"]) != `{"cronSpec":"* *","replicas":3}` {
			t.Errorf("status: %v %s", err, text(st))
		}
		if _, err := tabs.Patch(c.ctx, "a", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{}); !apierrors.IsUnsupportedMediaType(err) {
			t.Errorf("strategic merge: %v", err)
		}
		scale, err := tabs.Patch(c.ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":7}}`), metav1.PatchOptions{}, "scale")
		if err != nil || text(scale.Object["spec"]) != `{"replicas":7}` || text(scale.Object["status"]) != `{"replicas":9}` {
			t.Errorf("scale: %v %s", err, text(scale))
		}
		if _, err := tabs.Create(c.ctx, cron(t, "bad", "{cronSpec: x, replicas: 11}"), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("invalid: %v", err)
		}
		if err := tabs.Delete(c.ctx, "a", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if _, err := tabs.Get(c.ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("deleted: %v", err)
		}
	})
}

func text(v any) string {
	if u, ok := v.(*unstructured.Unstructured); ok {
		v = u.Object
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
