package registry

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The short way through an update's metadata finds what the library does.
func TestUpdatedMetadata(t *testing.T) {
	then := metav1.NewTime(time.Unix(1e9, 0))
	seconds := int64(5)
	for name, change := range map[string]func(m *metav1.ObjectMeta){
		"nothing":           func(*metav1.ObjectMeta) {},
		"name":              func(m *metav1.ObjectMeta) { m.Name = "other" },
		"namespace":         func(m *metav1.ObjectMeta) { m.Namespace = "other" },
		"uid":               func(m *metav1.ObjectMeta) { m.UID = "other" },
		"creationTimestamp": func(m *metav1.ObjectMeta) { m.CreationTimestamp = metav1.NewTime(time.Unix(1e9+1, 0)) },
		"deletionTimestamp": func(m *metav1.ObjectMeta) { m.DeletionTimestamp = &then },
		"grace":             func(m *metav1.ObjectMeta) { m.DeletionGracePeriodSeconds = &seconds },
		"resourceVersion":   func(m *metav1.ObjectMeta) { m.ResourceVersion = "" },
		"generation":        func(m *metav1.ObjectMeta) { m.Generation-- },
		"label":             func(m *metav1.ObjectMeta) { m.Labels = map[string]string{"a b": "c"} },
		"annotation":        func(m *metav1.ObjectMeta) { m.Annotations = map[string]string{"a b": "c"} },
		"finalizer":         func(m *metav1.ObjectMeta) { m.Finalizers = []string{"example.com/a"} },
		"owner":             func(m *metav1.ObjectMeta) { m.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "a"}} },
		"managed": func(m *metav1.ObjectMeta) {
			m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "a\n", Operation: "Do"}}
		},
	} {
		old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", UID: "c", CreationTimestamp: then, ResourceVersion: "7", Generation: 3}}
		obj := old.DeepCopy()
		change(&obj.ObjectMeta)
		want := validation.ValidateObjectMetaAccessorUpdate(obj, old, metadata)
		if got := validateMetadataUpdate(obj, old); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, and the library %v", name, got, want)
		}
		if faulty := name != "nothing" && name != "finalizer"; faulty != (len(want) > 0) {
			t.Errorf("%s: the library finds %v", name, want)
		}
	}
}
