package mergerules

import (
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	applyconfigurations "k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
)

var update = flag.Bool("update", false, "write rules.txt")

// The table is client-go's schema, boiled down.
func TestTableIsClientGos(t *testing.T) {
	pod := &corev1.Pod{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	typed, err := applyconfigurations.NewTypeConverter(scheme.Scheme).ObjectToTyped(pod)
	if err != nil {
		t.Fatal(err)
	}
	s := typed.Schema()
	var lines []string
	for _, def := range s.Types {
		if def.Map == nil {
			continue
		}
		var words []string
		if def.Map.ElementRelationship == schema.Atomic {
			words = append(words, "atomic")
		}
		for _, f := range def.Map.Fields {
			if w := word(t, s, f); w != "" {
				words = append(words, f.Name+"="+w)
			}
		}
		if len(words) > 0 && !strings.HasPrefix(def.Name, "__") {
			lines = append(lines, def.Name+" "+strings.Join(words, " "))
		}
	}
	sort.Strings(lines)
	want := strings.Join(lines, "\n") + "\n"
	if *update {
		if err := os.WriteFile("rules.txt", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != text {
		t.Error("rules.txt is not client-go's schema: run this test with -update")
	}
}

func word(t *testing.T, s *schema.Schema, f schema.StructField) string {
	atom, ok := s.Resolve(f.Type)
	if !ok {
		t.Fatalf("%s has no type", f.Name)
	}
	switch {
	case f.Type.ElementRelationship != nil:
		if *f.Type.ElementRelationship == schema.Atomic {
			return "atomic"
		}
		return "granular"
	case atom.List != nil && atom.Scalar == nil && atom.List.ElementRelationship == schema.Associative:
		if len(atom.List.Keys) == 0 {
			return "set"
		}
		var keys []string
		item, _ := s.Resolve(atom.List.ElementType)
		for _, k := range atom.List.Keys {
			key, ok := item.Map.FindField(k)
			if ok && key.Default == nil {
				k += "!"
			} else if ok && fmt.Sprint(key.Default) != "" && fmt.Sprint(key.Default) != "0" {
				k += "~" + fmt.Sprint(key.Default)
			}
			keys = append(keys, k)
		}
		return strings.Join(keys, ",")
	case atom.Map != nil && atom.Scalar == nil && f.Type.NamedType == nil && atom.Map.ElementRelationship == schema.Atomic:
		return "atomic"
	}
	return ""
}
