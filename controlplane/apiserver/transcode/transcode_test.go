package transcode_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/transcode"
)

// decodedOnly are the kinds with values that say themselves what their JSON is.
var decodedOnly = []string{"CustomResourceDefinition"}

type protoObject interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// reference is what encoding/json writes of the decoded message.
func reference(t testing.TB, kind registry.Resource, msg []byte) []byte {
	o := kind.New()
	if err := o.(protoObject).Unmarshal(msg); err != nil {
		t.Fatal(err)
	}
	return encoded(t, o)
}

func encoded(t testing.TB, o any) []byte {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(o); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(b.Bytes())
}

func TestEveryKindAsEncodingJSON(t *testing.T) {
	for _, kind := range registry.Resources {
		sample := kind.New()
		if _, ok := sample.(protoObject); !ok {
			continue
		}
		name := kind.GVK().Kind
		t.Run(kind.GVR().GroupResource().String()+"."+kind.GVK().Version, func(t *testing.T) {
			plan := transcode.Of(sample)
			if plan == nil {
				t.Fatal("no plan")
			}
			random := rand.New(rand.NewPCG(1, 2))
			written := 0
			const rounds = 60
			for i := range rounds {
				o := kind.New()
				fill(random, reflect.ValueOf(o).Elem(), 0, float64(i)/rounds)
				msg, err := o.(protoObject).Marshal()
				if err != nil {
					t.Fatal(err)
				}
				got, err := plan.Append(nil, msg)
				if errors.Is(err, transcode.ErrUnusual) {
					continue
				}
				written++
				if want := reference(t, kind, msg); !bytes.Equal(got, want) {
					at := 0
					for at < min(len(got), len(want)) && got[at] == want[at] {
						at++
					}
					from := max(0, at-80)
					t.Fatalf("round %d differs:\n%s\n%s", i, got[from:min(len(got), at+80)], want[from:min(len(want), at+80)])
				}
			}
			if written < rounds/2 && !slices.Contains(decodedOnly, name) {
				t.Errorf("%d of %d messages were written", written, rounds)
			}
		})
	}
}

// What selectors read from messages is what they would read from objects.
func TestPathsFindFieldLabels(t *testing.T) {
	texts := 0
	for _, kind := range registry.Resources {
		plan := transcode.Of(kind.New())
		if _, ok := kind.New().(protoObject); !ok || plan == nil || kind.IsVirtual() {
			continue
		}
		random := rand.New(rand.NewPCG(3, 4))
		for i := range 30 {
			o := kind.New()
			fill(random, reflect.ValueOf(o).Elem(), 0, float64(i)/30)
			msg, err := o.(protoObject).Marshal()
			if err != nil {
				t.Fatal(err)
			}
			if err := o.(protoObject).Unmarshal(msg); err != nil { // merges: the maps stay
				t.Fatal(err)
			}
			set := kind.FieldSet(o)
			for _, label := range kind.FieldLabels() {
				path, ok := plan.Path(label)
				if !ok || label == "status.podIP" { // derived from the list of addresses
					continue
				}
				texts++
				if got, err := path.Find(msg); err != nil || string(got) != set[label] {
					t.Errorf("%s %s: %q (%v), want %q", kind.GVR().Resource, label, got, err, set[label])
				}
			}
		}
	}
	if texts < 1000 {
		t.Errorf("only %d texts were compared", texts)
	}
}

var words = []string{"", "a", "web", "Bad \"quoted\" \\ name", "<b>&</b>", "zwölf\u2028", "bad\xffutf8", "line\nbreak\x01"}

// fill sets v to something random; fullness is how much of it.
func fill(r *rand.Rand, v reflect.Value, depth int, fullness float64) {
	switch v.Interface().(type) {
	case metav1.Time:
		if r.Float64() < fullness {
			v.Set(reflect.ValueOf(metav1.Unix(r.Int64N(1e10), 0)))
		}
		return
	case metav1.MicroTime:
		if r.Float64() < fullness {
			v.Set(reflect.ValueOf(metav1.MicroTime{Time: time.Unix(r.Int64N(1e10), 1000*r.Int64N(1e6))}))
		}
		return
	case metav1.TypeMeta:
		return
	case resource.Quantity:
		v.Set(reflect.ValueOf(resource.MustParse([]string{"0", "1", "100m", "1.5Gi", "-3k", "12e6"}[r.IntN(6)])))
		return
	case intstr.IntOrString:
		v.Set(reflect.ValueOf([]intstr.IntOrString{intstr.FromInt32(-5), intstr.FromString("50%"), {}}[r.IntN(3)]))
		return
	case metav1.FieldsV1:
		v.Set(reflect.ValueOf(metav1.FieldsV1{Raw: []byte([]string{`{}`, `{"f:a":{"f:b":{},".":{}},"k:{\"x\":1}":{}}`, `{ "a": [1, "<"] }`, `null`}[r.IntN(4)])}))
		return
	case runtime.RawExtension:
		v.Set(reflect.ValueOf(runtime.RawExtension{Raw: []byte([]string{`{"a":1}`, `[{}, "&"]`}[r.IntN(2)])}))
		return
	case unstructured.Unstructured:
		return
	}
	switch v.Kind() {
	case reflect.String:
		if r.Float64() < fullness {
			v.SetString(words[r.IntN(len(words))])
		}
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt([]int64{0, 1, -1, 1 << 30}[r.IntN(4)])
	case reflect.Uint8:
		v.SetUint(uint64(r.IntN(256)))
	case reflect.Pointer:
		if depth < 12 && r.Float64() < fullness {
			v.Set(reflect.New(v.Type().Elem()))
			fill(r, v.Elem(), depth+1, fullness)
		}
	case reflect.Slice:
		if depth < 12 && r.Float64() < fullness {
			n := r.IntN(3)
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fill(r, v.Index(i), depth+1, fullness)
			}
		}
	case reflect.Map:
		if depth < 12 && r.Float64() < fullness {
			v.Set(reflect.MakeMap(v.Type()))
			for range r.IntN(3) {
				key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				fill(r, key, depth+1, 1)
				fill(r, value, depth+1, fullness)
				v.SetMapIndex(key, value)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				fill(r, f, depth+1, fullness)
			}
		}
	}
}

func FuzzAppend(f *testing.F) {
	pods := registry.Resources[slices.IndexFunc(registry.Resources, func(r registry.Resource) bool { return r.GVK().Kind == "Pod" })]
	plan := transcode.Of(pods.New())
	for _, p := range []*corev1.Pod{{}, busy()} {
		msg, err := p.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		got, err := plan.Append(nil, msg)
		if err != nil {
			return
		}
		if !json.Valid(got) {
			t.Fatalf("no JSON: %q", got)
		}
		o := pods.New()
		if o.(protoObject).Unmarshal(msg) != nil {
			return // the decoder knows more rules
		}
		canonical, err := o.(protoObject).Marshal()
		if err != nil || !bytes.Equal(canonical, msg) {
			return // only what the API server writes is promised
		}
		if want := encoded(t, o); !bytes.Equal(got, want) {
			t.Fatalf("differs:\n%s\n%s", got, want)
		}
	})
}

func busy() *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-5d4b9c6f5d-abcde", Namespace: "default", UID: "0c1f", CreationTimestamp: metav1.Unix(1e9, 0),
		Labels: map[string]string{"app": "web", "tier": "front"}, Annotations: map[string]string{"example.com/owner": "team"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "test", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:image":{}}}}}`)}}}}}
	for i := range 2 {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i), Image: "registry.example.com/app:v1", Args: []string{"serve", strings.Repeat("x", 40)},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("10m"), "memory": resource.MustParse("16Mi")}},
			Ports:     []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}, ImagePullPolicy: "Always"})
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: "Ready", Status: "True", LastTransitionTime: metav1.Unix(1e9, 0)}}
	return p
}

func BenchmarkAppend(b *testing.B) {
	p := busy()
	msg, err := p.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	plan := transcode.Of(p)
	b.Run("transcode", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			if buf, err = plan.Append(buf[:0], msg); err != nil {
				b.Fatal(err)
			}
		}
		b.SetBytes(int64(len(buf)))
	})
	b.Run("decode and encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var o corev1.Pod
			if err := o.Unmarshal(msg); err != nil {
				b.Fatal(err)
			}
			encoded(b, &o)
		}
	})
}
