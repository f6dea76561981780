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

// A route at which compiling fails is left out, alone.
func TestDropped(t *testing.T) {
	of := func(name string) *Route {
		return &Route{Name: name, Hosts: []string{name}, Rules: []Rule{{Name: name}}}
	}
	table := Compile([]*Route{of("a"), of("b"), of("c")}, func(r *Route, _ *Rule) string {
		if r.Name == "b" {
			panic("what a tenant wrote")
		}
		return r.Name
	})
	for _, name := range []string{"a", "c"} {
		if found := table.Match(&Request{Host: name, Path: "/"}); found == nil || found.Action != name {
			t.Errorf("%s is not served: %v", name, found)
		}
	}
	if found := table.Match(&Request{Host: "b", Path: "/"}); found != nil || len(table.Dropped) != 1 || table.Dropped["b"] == nil {
		t.Errorf("b is served: %v; dropped are %v", found, table.Dropped)
	}
}
