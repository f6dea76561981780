package registry

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestUnversioned writes objects that have every field: testdata/unversioned.json
// is what encoding/json makes of upstream's unversioned types, converted from them.
func TestUnversioned(t *testing.T) {
	var want map[string]json.RawMessage
	text, err := os.ReadFile("testdata/unversioned.json")
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := apiExamples(t)
	read := func(kind string, into any) {
		text, err := os.ReadFile(filepath.Join(dir, "core.v1."+kind+".json"))
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var pod corev1.Pod
	read("Pod", &pod)
	var volume corev1.PersistentVolume
	read("PersistentVolume", &volume)
	var claim corev1.PersistentVolumeClaim
	read("PersistentVolumeClaim", &claim)
	claim.TypeMeta.Kind, claim.APIVersion, claim.ManagedFields = "", "", nil
	for kind, v := range map[string]any{"Pod": pod.Spec, "PersistentVolume": volume.Spec, "PersistentVolumeClaim": &claim} {
		got, err := json.Marshal(unversioned{v})
		if err != nil {
			t.Fatal(err)
		}
		if i := differ(got, want[kind]); i >= 0 {
			t.Errorf("%s, byte %d:\ngot  %s\nwant %s", kind, i, around(got, i), around(want[kind], i))
		}
	}
}

func differ(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return n
	}
	return -1
}

func around(text []byte, i int) string { return string(text[max(0, i-80):min(len(text), i+80)]) }
