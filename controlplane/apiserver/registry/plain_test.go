package registry

import (
	"math/rand/v2"
	"strings"
	"testing"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TestPlain: whatever is plain is right by the library's rules too, and what
// people write is plain.
func TestPlain(t *testing.T) {
	var rules = []struct {
		name  string
		plain func(string) bool
		rule  func(string) []string
		usual []string
	}{
		{"label", plainLabel, validation.IsDNS1123Label, []string{"a", "web-0", strings.Repeat("x", 63)}},
		{"label as a name", plainLabel, func(s string) []string { return apivalidation.NameIsDNSLabel(s, false) }, nil},
		{"subdomain", plainSubdomain, validation.IsDNS1123Subdomain, []string{"a", "a.b-c.d", "10.0.0.1"}},
		{"key", plainKey, validation.IsQualifiedName, []string{"app", "app.kubernetes.io/name", "A_b.c"}},
		{"value", plainValue, validation.IsValidLabelValue, []string{"", "v1.2", "A_b-c"}},
	}
	const letters = "ab9Z-._/ é\x00"
	r := rand.New(rand.NewPCG(1, 2))
	for _, rule := range rules {
		for _, s := range rule.usual {
			if !rule.plain(s) {
				t.Errorf("%s: %q is not plain", rule.name, s)
			}
		}
		plain := 0
		for range 200_000 {
			b := make([]byte, r.IntN(8))
			for i := range b {
				b[i] = letters[r.IntN(len(letters))]
			}
			s := strings.Repeat(string(b), 1+r.IntN(3)*r.IntN(20))
			if rule.plain(s) {
				plain++
				if bad := rule.rule(s); len(bad) > 0 {
					t.Fatalf("%s: %q is plain, and the library says %v", rule.name, s, bad)
				}
			}
		}
		if plain < 1000 {
			t.Errorf("%s: only %d plain words tried", rule.name, plain)
		}
	}
}
