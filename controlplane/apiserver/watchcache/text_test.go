package watchcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/registry"
)

func TestJSONVersion(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"metadata":{"name":"a","uid":"u"},"spec":{"metadata":{"resourceVersion":"no"}}}`, `{"metadata":{"name":"a","resourceVersion":"7","uid":"u"},"spec":{"metadata":{"resourceVersion":"no"}}}`},
		{`{"kind":"A","metadata":{"name":"a"}}`, `{"kind":"A","metadata":{"name":"a","resourceVersion":"7"}}`},
		{`{"metadata":{}}`, `{"metadata":{"resourceVersion":"7"}}`},
		{`{ "metadata" : { "resourceVersion" : "12" , "uid":"u" } }`, `{ "metadata" : { "resourceVersion" : "7" , "uid":"u" } }`},
		{`{"a":"\"metadata\":{","b":["}",{"x":"]"}],"metadata":{"annotations":{"a":"{\\\"}"},"uid":"u"}}`, `{"a":"\"metadata\":{","b":["}",{"x":"]"}],"metadata":{"annotations":{"a":"{\\\"}"},"resourceVersion":"7","uid":"u"}}`},
	} {
		got, err := withJSONVersion([]byte(c.in), 7)
		if err != nil || string(got) != c.want {
			t.Errorf("%s\ngot  %s %v\nwant %s", c.in, got, err, c.want)
		}
	}
	for _, bad := range []string{``, `[]`, `{}`, `{"metadata":1}`, `{"metadata":{"a"`, `{"metadata":{"a":"`, `{"metadata":`, `{"metadata":{"a":1 "b":2}}`} {
		if got, err := withJSONVersion([]byte(bad), 7); err == nil {
			t.Errorf("%q gives %s", bad, got)
		}
	}
}

// FuzzJSONVersion: any value in the store is read or refused, never a panic,
// and one that is read can be given a version again.
func FuzzJSONVersion(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a","uid":"u"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		once, err := withJSONVersion(data, 7)
		if err != nil {
			return
		}
		twice, err := withJSONVersion(once, 7)
		if err != nil || string(once) != string(twice) {
			t.Errorf("%q gives %q, then %q, %v", data, once, twice, err)
		}
	})
}

// widgets is a custom kind with nothing special.
type widgets struct{ registry.Resource }

func (widgets) GVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
}
func (widgets) New() registry.Object { return &unstructured.Unstructured{} }
func (widgets) Namespaced() bool     { return true }
func (widgets) Storage() registry.Storage {
	return registry.Storage{Prefix: "example.com/widgets", JSON: true}
}

func widget(name string, value any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name, "namespace": "ns"}, "spec": value}}
}

// TestResourcesComeAndGo: what is in the store is found by a resource added
// later, in upstream's layout; watches of one removed end.
func TestResourcesComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, store := start(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		const old = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","namespace":"ns","uid":"u"},"spec":1}` + "\n"
		rev, _, _, err := store.Put(ctx, "/registry/example.com/widgets/ns/a", []byte(old), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Add(ctx, widgets{}); err != nil {
			t.Fatal(err)
		}
		r := c.At("example.com/widgets")
		rec, err := r.Get(ctx, "ns/a", "")
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","namespace":"ns","resourceVersion":"%d","uid":"u"},"spec":1}`, rev)
		if data, err := rec.AppendJSON(nil); err != nil || string(data) != want {
			t.Errorf("read %s %v\nwant %s", data, err, want)
		}
		w, err := r.Watch(ctx, WatchQuery{ResourceVersion: fmt.Sprint(rev)})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		made, err := r.Create(ctx, "ns/b", widget("b", "<&>"))
		if err != nil {
			t.Fatal(err)
		}
		kv, _, err := store.Get(ctx, "/registry/example.com/widgets/ns/b")
		if want := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"b","namespace":"ns"},"spec":"\u003c\u0026\u003e"}` + "\n"; err != nil || string(kv.Value) != want {
			t.Errorf("stored %q %v\nwant %q", kv.Value, err, want)
		}
		synctest.Wait()
		if got, err := w.Poll(nil); err != nil || len(got) != 1 || got[0].Record != made {
			t.Errorf("watched %v %v", got, err)
		}
		calls := 0
		view := &View{Make: func(o registry.Object) (registry.Object, error) {
			calls++
			o.SetLabels(map[string]string{"seen": "yes"})
			return o, nil
		}}
		for range 2 {
			obj, data, err := made.See(view)
			if err != nil || obj.GetLabels()["seen"] != "yes" || !bytes.Contains(data, []byte(`"seen":"yes"`)) {
				t.Errorf("seen %v %s %v", obj, data, err)
			}
		}
		if calls != 1 {
			t.Errorf("the view was made %d times", calls)
		}
		c.Remove("example.com/widgets")
		if _, err := w.Poll(nil); !errors.Is(err, ErrEnded) {
			t.Errorf("the watch goes on: %v", err)
		}
		if c.At("example.com/widgets") != nil {
			t.Error("still there")
		}
	})
}
