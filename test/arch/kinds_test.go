package arch

import (
	"os"
	"strings"
	"testing"

	"knarr/controlplane/apiserver/registry"
)

// TestKinds: the table of kinds is upstream's, no more and no less.
func TestKinds(t *testing.T) {
	served := map[string]bool{}
	for _, r := range registry.Resources {
		gvr := r.GVR()
		served[gvr.GroupVersion().String()+"/"+gvr.Resource] = true
	}
	for _, r := range lines(t, "testdata/resources.txt") {
		if !served[r] {
			t.Errorf("%s is not in the table of kinds", r)
		}
		delete(served, r)
	}
	for r := range served {
		t.Errorf("%s is served, and upstream does not serve it", r)
	}
}

func lines(t *testing.T, file string) (all []string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}
