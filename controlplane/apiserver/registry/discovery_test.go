package registry

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDiscovery compares names, verbs and subresources with the reference's.
func TestDiscovery(t *testing.T) {
	file := filepath.Join("testdata", "discovery.json")
	golden := map[string][]metav1.APIResource{}
	if *update {
		for _, r := range Resources {
			gv := r.GVR().GroupVersion().String()
			if _, ok := golden[gv]; ok {
				continue
			}
			path := "/apis/" + gv
			if r.GVR().Group == "" {
				path = "/api/" + gv
			}
			var list metav1.APIResourceList
			oracle(t, "GET", path, nil, "application/json", &list)
			for i := range list.APIResources {
				list.APIResources[i].StorageVersionHash = ""
			}
			golden[gv] = list.APIResources
		}
		record(t, file, golden)
	}
	load(t, file, &golden)
	served := map[string]bool{}
	for _, r := range Resources {
		gv := r.GVR().GroupVersion().String()
		name := r.GVR().Resource
		served[gv+"/"+name] = true
		names := r.Names()
		compareResource(t, golden[gv], metav1.APIResource{Name: name, SingularName: names.Singular, Namespaced: r.Namespaced(),
			Kind: r.GVK().Kind, Verbs: verbsOf(r), ShortNames: names.Short, Categories: names.Categories})
		for _, s := range r.Subresources() {
			served[gv+"/"+name+"/"+s.Name] = true
			sub := metav1.APIResource{Name: name + "/" + s.Name, Namespaced: r.Namespaced(), Kind: s.Kind.Kind, Verbs: s.Verbs}
			if s.Kind.GroupVersion() != r.GVR().GroupVersion() {
				sub.Group, sub.Version = s.Kind.Group, s.Kind.Version
			}
			compareResource(t, golden[gv], sub)
		}
	}
	for gv, list := range golden {
		for _, r := range list {
			if id := gv + "/" + r.Name; !served[id] {
				t.Errorf("%s is not served", id)
			}
		}
	}
}

func compareResource(t *testing.T, list []metav1.APIResource, got metav1.APIResource) {
	t.Helper()
	i := slices.IndexFunc(list, func(r metav1.APIResource) bool { return r.Name == got.Name })
	if i < 0 {
		t.Errorf("%s %s is unknown to the reference", got.Kind, got.Name)
		return
	}
	slices.Sort(got.Verbs)
	if !same(list[i], got) {
		t.Errorf("%s:\ngot  %+v\nwant %+v", strings.ToLower(got.Kind), got, list[i])
	}
}
