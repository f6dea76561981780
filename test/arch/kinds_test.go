package arch

import (
	"os"
	"slices"
	"strings"
	"testing"

	"knarr/controlplane/apiserver/registry"
)

// TestKinds: what upstream serves by default is in the table of kinds or on the
// list of what is not there yet, which may only shrink.
func TestKinds(t *testing.T) {
	upstream, notYet := lines(t, "testdata/resources.txt"), lines(t, "testdata/not-yet.txt")
	served := map[string]bool{}
	for _, r := range registry.Resources {
		gvr := r.GVR()
		served[gvr.GroupVersion().String()+"/"+gvr.Resource] = true
	}
	for _, r := range upstream {
		switch missing := slices.Contains(notYet, r); {
		case served[r] && missing:
			t.Errorf("%s is served: take it off testdata/not-yet.txt", r)
		case !served[r] && !missing:
			t.Errorf("%s is not in the table of kinds", r)
		}
		delete(served, r)
	}
	for _, r := range notYet {
		if !slices.Contains(upstream, r) {
			t.Errorf("testdata/not-yet.txt: upstream serves no %s", r)
		}
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
