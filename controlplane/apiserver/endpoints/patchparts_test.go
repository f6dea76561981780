package endpoints

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Texts of metadata are set as the general ways of merging would.
func TestMetadataTexts(t *testing.T) {
	for change, simple := range map[string]bool{
		`{}`:                       true,
		`{"labels":{}}`:            true,
		`{"labels":{"a":"2"}}`:     true,
		`{"labels":{"a":null}}`:    true,
		`{"labels":{"b":null}}`:    true,
		`{"annotations":{"x":""}}`: true,
		`{"annotations":{"x":"y"},"labels":{"a":null,"b":"c"},"uid":"u","name":"n","namespace":"m","resourceVersion":"7"}`: true,
		`{"uid":""}`:                        true,
		`{"uid":null}`:                      false,
		`{"labels":null}`:                   false,
		`{"labels":{"a":1}}`:                false,
		`{"labels":{"$patch":"replace"}}`:   false,
		`{"$patch":"replace"}`:              false,
		`{"finalizers":["f"]}`:              false,
		`{"generateName":"g","labels":{}}`:  false,
		`"text"`:                            false,
		`null`:                              false,
		`{"annotations":{"a":{"b":"c"}}}`:   false,
		`{"labels":["a"],"annotations":{}}`: false,
	} {
		for _, old := range []metav1.ObjectMeta{{Name: "o"}, {Name: "o", UID: "v", Labels: map[string]string{"a": "1", "z": "0"}, Finalizers: []string{"k"}}} {
			var c any
			if err := json.Unmarshal([]byte(change), &c); err != nil {
				t.Fatal(err)
			}
			texts, ok := metadataTexts(c)
			if ok != simple {
				t.Errorf("%s: simple %v, want %v", change, ok, simple)
			}
			if !ok {
				continue
			}
			got := (&corev1.Pod{ObjectMeta: old}).DeepCopy()
			setTexts(got, texts)
			before := func() map[string]any {
				m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.Pod{ObjectMeta: old})
				if err != nil {
					t.Fatal(err)
				}
				return m
			}
			whole := map[string]any{"metadata": c}
			strategic, err := strategicpatch.StrategicMergeMapPatch(before(), runtime.DeepCopyJSON(whole), &corev1.Pod{})
			if err != nil {
				t.Fatal(err)
			}
			for way, m := range map[string]map[string]any{"merge": mergeMap(before(), runtime.DeepCopyJSON(whole)), "strategic": strategic} {
				want := &corev1.Pod{}
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m, want); err != nil {
					t.Fatal(err)
				}
				if !equality.Semantic.DeepEqual(got.ObjectMeta, want.ObjectMeta) {
					t.Errorf("%s of %+v, %s: %+v, want %+v", change, old, way, got.ObjectMeta, want.ObjectMeta)
				}
			}
		}
	}
}
