package route

import (
	"regexp"
	"testing"
)

// A pattern that would swallow what is put around it matches nothing, and ends nobody.
func TestWholePattern(t *testing.T) {
	for _, text := range []string{`a\Q`, `x)\Q`} {
		p, err := regexp.Compile(text)
		if err != nil {
			continue // it does not even compile alone
		}
		if WholePattern(p).MatchString("a") {
			t.Errorf("%s matches", text)
		}
	}
	if p := WholePattern(regexp.MustCompile("a|b")); !p.MatchString("b") || p.MatchString("ab") {
		t.Error("it is no whole match")
	}
}
