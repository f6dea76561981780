package apiflags

import (
	"strings"
	"testing"
)

// A file of tokens is refused, or gives people that tokens name.
func FuzzTokens(f *testing.F) {
	f.Add("secret,ann,1,\"a,b\"\n,nobody,2\nsecret,bob,3\n")
	f.Add("a,b\n")
	f.Add("\"\n")
	f.Fuzz(func(t *testing.T, lines string) {
		people, err := parseTokens("tokens.csv", strings.NewReader(lines))
		if err != nil && people != nil {
			t.Fatalf("%v, and %v", err, people)
		}
		for token, who := range people {
			if token == "" || !strings.Contains(lines, strings.ReplaceAll(token, `"`, `""`)) && !strings.Contains(token, "\n") || who == nil {
				t.Fatalf("%q gives %q to %v", lines, token, who)
			}
		}
	})
}
