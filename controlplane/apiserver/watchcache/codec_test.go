package watchcache

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/registry"
)

// TestForms: built-in kinds are stored in upstream's form, read in either, and
// watched in protobuf with the envelope that clients expect.
func TestForms(t *testing.T) {
	const configMap = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"ns","uid":"u"},"data":{"k":"v"}}`
	const service = `{"kind":"APIService","apiVersion":"apiregistration.k8s.io/v1","metadata":{"name":"v1.a.example.com","uid":"u"},"spec":{"group":"a.example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1},"status":{}}`
	services := schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	for _, c := range []struct {
		gvr       schema.GroupVersionResource
		key, text string
		json      bool // how it is written
	}{
		{configMaps, "ns/a", configMap, false},
		{services, "v1.a.example.com", service, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			cache, _, store := start(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r := cache.Resource(c.gvr)
			key := "/registry/" + r.codec.prefix + "/" + c.key
			if _, _, _, err := store.Put(ctx, key, []byte(c.text+"\n"), 0, 0); err != nil {
				t.Fatal(err)
			}
			rec := must[*Record](t)(r.Get(ctx, c.key, ""))
			same(t, "JSON in the store", r.kind, rec, c.text)

			o := r.codec.new()
			if err := o.(protoMessage).Unmarshal(rec.message); err != nil {
				t.Fatal(err)
			}
			value := appendBytes(envelopeHead(r.kind.GVK()), 0x12, rec.message)
			read, err := r.codec.record(c.key, append(value, envelopeTail...), 9)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "protobuf in the store", r.kind, read, c.text)

			stored, _, err := r.codec.encode(o)
			if err != nil || strings.HasPrefix(string(stored), "{") != c.json {
				t.Errorf("%s is written as %q, %v", r.kind.GVK().Kind, stored, err)
			}
			if c.json && string(stored) != c.text+"\n" {
				t.Errorf("stored %q\nwant   %q", stored, c.text)
			}

			frame, err := Delivery{Type: "ADDED", Record: rec}.Frame(Protobuf, r)
			if err != nil {
				t.Fatal(err)
			}
			var event metav1.WatchEvent
			var unknown runtime.Unknown
			if err := event.Unmarshal(frame[4:]); err != nil {
				t.Fatal(err)
			}
			if err := unknown.Unmarshal(event.Object.Raw[len(magic):]); err != nil || unknown.Kind != r.kind.GVK().Kind || string(unknown.Raw) != string(rec.message) {
				t.Errorf("watched %+v, %v", unknown.TypeMeta, err)
			}
		})
	}
}

// same compares a record with the document that it was made of.
func same(t *testing.T, what string, kind registry.Resource, r *Record, want string) {
	t.Helper()
	o, err := r.codec.decode(r.message)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	o.SetResourceVersion("")
	o.GetObjectKind().SetGroupVersionKind(kind.GVK())
	got, err := encodeJSON(o)
	if err != nil || string(got) != want {
		t.Errorf("%s: got  %s %v\nwant %s", what, got, err, want)
	}
}
