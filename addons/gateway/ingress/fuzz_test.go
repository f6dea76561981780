package ingress

import (
	"strings"
	"testing"

	"knarr/internal/references"
)

// FuzzAnnotation: whatever a tenant writes, compiling ends, and what is not followed is said
// in a bounded number of sentences.
func FuzzAnnotation(f *testing.F) {
	for _, c := range served {
		first, _, _ := strings.Cut(c.annotations, "\n")
		name, value, _ := strings.Cut(first, "=")
		f.Add(name, value, "/a")
	}
	f.Add("use-regex", "true", "/(a|b{3})[c-e]*")
	f.Fuzz(func(t *testing.T, name, value, path string) {
		cl := newCluster(t)
		ing := cl.ingress("i", "", "a.example/ Prefix web:80")
		ing.Annotations[references.Prefix+name] = value
		ing.Spec.Rules[0].HTTP.Paths[0].Path = path
		out := cl.compile()
		faults := out.Verdicts[named("default", "i")].Faults
		if len(faults) > maxFaults+1 {
			t.Errorf("%d faults", len(faults))
		}
		if a, known := Annotations[name]; !known && len(faults) == 0 || known && a.Kind == Refused && len(faults) == 0 {
			t.Errorf("%s is ignored silently", name)
		}
		for _, l := range out.Listeners {
			for _, r := range l.Routes {
				for _, rule := range r.Rules {
					if rule.Filters.Access == nil && strings.HasSuffix(name, "list-source-range") && rule.Status == 0 && rule.Filters.Redirect == nil && !strings.HasPrefix(name, "limit") && isKnown(name) {
						t.Errorf("%s=%q lets everybody in", name, value)
					}
				}
			}
		}
	})
}

func isKnown(name string) bool { _, ok := Annotations[name]; return ok }
