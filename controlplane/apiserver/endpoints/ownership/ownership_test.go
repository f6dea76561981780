package ownership

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/managedfields"
	applyconfigurations "k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"
)

type object interface {
	runtime.Object
	metav1.Object
}

// upstream is the field manager that results are compared with.
func upstream(t testing.TB, gvk schema.GroupVersionKind) *managedfields.FieldManager {
	t.Helper()
	m, err := managedfields.NewDefaultFieldManager(converter, same1{}, same1{}, same1{}, gvk, gvk.GroupVersion(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var converter = applyconfigurations.NewTypeConverter(scheme.Scheme)

type same1 struct{}

func (same1) Convert(in, out, context any) error { return nil }
func (same1) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}
func (same1) ConvertFieldLabel(_ schema.GroupVersionKind, l, v string) (string, string, error) {
	return l, v, nil
}
func (same1) Default(runtime.Object) {}
func (same1) New(k schema.GroupVersionKind) (runtime.Object, error) {
	return scheme.Scheme.New(k)
}

func filler(seed int64) *randfill.Filler {
	text := func(s *string, c randfill.Continue) { *s = fmt.Sprintf("s%d", c.Intn(4)) }
	return randfill.NewWithSeed(seed).NilChance(.5).NumElements(0, 3).MaxDepth(14).Funcs(
		text,
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewQuantity(int64(c.Intn(5)), resource.DecimalSI)
			_ = q.String()
		},
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.FromInt32(int32(c.Intn(3))) },
		func(v *metav1.Time, c randfill.Continue) { *v = metav1.Unix(int64(1000+c.Intn(3)), 0) },
		func(v *metav1.MicroTime, c randfill.Continue) {
			*v = metav1.NewMicroTime(time.Unix(int64(1000+c.Intn(3)), 0))
		},
		func(v *runtime.RawExtension, c randfill.Continue) { v.Raw = []byte(`{"a":1}`) },
		func(v *metav1.FieldsV1, c randfill.Continue) {},
		func(v *int32, c randfill.Continue) { *v = int32(c.Intn(3)) },
		func(v *int64, c randfill.Continue) { *v = int64(c.Intn(3)) },
	)
}

func fill(seed int64, obj object) {
	filler(seed).Fill(obj)
	obj.SetManagedFields(nil)
	obj.SetUID("uid")
	obj.SetName("name")
}

// Random objects are created, then updated twice by other managers; each time
// the entries must be those of apimachinery.
func TestEntriesAreUpstreams(t *testing.T) {
	kinds := []func() (object, schema.GroupVersionKind){
		func() (object, schema.GroupVersionKind) {
			return &corev1.Pod{}, corev1.SchemeGroupVersion.WithKind("Pod")
		},
		func() (object, schema.GroupVersionKind) {
			return &corev1.Service{}, corev1.SchemeGroupVersion.WithKind("Service")
		},
		func() (object, schema.GroupVersionKind) {
			return &corev1.Node{}, corev1.SchemeGroupVersion.WithKind("Node")
		},
		func() (object, schema.GroupVersionKind) {
			return &corev1.ConfigMap{}, corev1.SchemeGroupVersion.WithKind("ConfigMap")
		},
		func() (object, schema.GroupVersionKind) {
			return &corev1.PersistentVolume{}, corev1.SchemeGroupVersion.WithKind("PersistentVolume")
		},
		func() (object, schema.GroupVersionKind) {
			return &appsv1.Deployment{}, appsv1.SchemeGroupVersion.WithKind("Deployment")
		},
		func() (object, schema.GroupVersionKind) {
			return &networkingv1.Ingress{}, networkingv1.SchemeGroupVersion.WithKind("Ingress")
		},
	}
	for _, kind := range kinds {
		_, gvk := kind()
		t.Run(gvk.Kind, func(t *testing.T) {
			ref := upstream(t, gvk)
			for seed := range int64(40) {
				empty, _ := kind()
				first, _ := kind()
				fill(seed, first)
				second := mutate(seed, first, kind)
				third := mutate(seed+1000, second, kind)
				var live object = empty
				var entries []metav1.ManagedFieldsEntry
				for i, step := range []object{first, second, third} {
					theirs, ours := live.DeepCopyObject().(object), live.DeepCopyObject().(object)
					manager := fmt.Sprint("m", i%2)
					want := step.DeepCopyObject().(object)
					theirs.GetObjectKind().SetGroupVersionKind(gvk)
					want.GetObjectKind().SetGroupVersionKind(gvk)
					out, err := ref.Update(theirs, want, manager)
					if err != nil {
						break // upstream gives up on values it cannot name
					}
					ours.SetManagedFields(nil)
					entries = Update(Request{
						Old: ours, Obj: step, Creating: i == 0, Live: entries, Manager: manager,
						APIVersion: gvk.GroupVersion().String(), Now: time.Now()})
					if w, g := readable(out.(object).GetManagedFields()), readable(entries); !reflect.DeepEqual(w, g) {
						t.Fatalf("seed %d step %d\nwant %s\ngot  %s", seed, i, asJSON(w), asJSON(g))
					}
					live = step.DeepCopyObject().(object)
					live.SetManagedFields(entries)
				}
			}
		})
	}
}

// mutate takes some top parts from another random object.
func mutate(seed int64, obj object, kind func() (object, schema.GroupVersionKind)) object {
	out := obj.DeepCopyObject().(object)
	other, _ := kind()
	fill(seed+7, other)
	r := rand.New(rand.NewSource(seed))
	var mix func(a, b reflect.Value, depth int)
	mix = func(a, b reflect.Value, depth int) {
		for i := range a.NumField() {
			if !a.Type().Field(i).IsExported() {
				continue
			}
			fa, fb := a.Field(i), b.Field(i)
			if fa.Kind() == reflect.Struct && depth < 4 && r.Intn(3) > 0 {
				mix(fa, fb, depth+1)
			} else if r.Intn(4) == 0 {
				fa.Set(fb)
			}
		}
	}
	mix(reflect.ValueOf(out).Elem(), reflect.ValueOf(other).Elem(), 0)
	out.SetManagedFields(nil)
	out.SetUID("uid")
	return out.DeepCopyObject().(object)
}

func readable(list []metav1.ManagedFieldsEntry) map[string]any {
	out := map[string]any{}
	for _, e := range list {
		var fields any
		if err := json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields); err != nil {
			fields = err.Error()
		}
		out[fmt.Sprint(e.Manager, " ", e.Operation, " ", e.APIVersion, " ", e.Subresource)] = fields
	}
	return out
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func TestParseAndWrite(t *testing.T) {
	for _, text := range []string{
		`{}`,
		`{"f:data":{".":{},"f:k":{}}}`,
		`{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{}}},"f:finalizers":{"v:\"a\"":{}}}}`,
	} {
		s, err := parse([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := string(s.appendJSON(nil)); got != text {
			t.Errorf("%s came back as %s", text, got)
		}
	}
	for _, text := range []string{``, `{`, `[]`, `{"x":{}}`, `{"f:a":1}`, `{"f:a":{}} x`, `{"f:a`} {
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%s was read", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"f:spec":{"k:{\"name\":\"c\"}":{".":{}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parse(data)
		if err != nil {
			return
		}
		once := s.appendJSON(nil)
		again, err := parse(once)
		if err != nil {
			t.Fatalf("%s: %v", once, err)
		}
		if twice := again.appendJSON(nil); string(twice) != string(once) {
			t.Fatalf("%s became %s", once, twice)
		}
	})
}
