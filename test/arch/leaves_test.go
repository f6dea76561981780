package arch

import (
	"slices"
	"strings"
	"testing"
)

// leaves are rooms of the API server that the handlers of requests call, or that
// say what both sides of a call must know. Each imports only these of ours.
var leaves = []struct {
	room   string
	within []string
}{
	{"controlplane/apiserver/admission", []string{"controlplane/apiserver/metrics", "controlplane/apiserver/request"}},
	{"controlplane/apiserver/connect", []string{"controlplane/apiserver/egress", "controlplane/apiserver/registry",
		"controlplane/apiserver/request", "controlplane/apiserver/watchcache", "internal/run"}},
	{"controlplane/apiserver/serviceallocation", []string{
		"controlplane/apiserver/endpoints/ownership", "controlplane/apiserver/registry", "controlplane/apiserver/watchcache"}},
}

// handlers is what no leaf reaches, and no room below one.
const handlers = "controlplane/apiserver/endpoints"

// TestLeaves: the rooms around the handlers do not lean on them, neither
// directly nor by way of others.
func TestLeaves(t *testing.T) {
	for _, l := range leaves {
		seen := 0
		for _, p := range tree(t) {
			if !within(p.name(), l.room) {
				continue
			}
			seen++
			if slices.Contains(p.Deps, module+handlers) {
				t.Errorf("%s reaches %s, which calls it", p.name(), handlers)
			}
			if p.name() != l.room {
				continue
			}
			for _, path := range p.Imports {
				if to, ours := strings.CutPrefix(path, module); ours && !slices.Contains(l.within, to) {
					t.Errorf("%s imports %s: a leaf imports %v", l.room, to, l.within)
				}
			}
		}
		if seen == 0 {
			t.Errorf("there is no %s", l.room)
		}
	}
}
