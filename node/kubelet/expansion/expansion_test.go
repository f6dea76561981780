package expansion

import (
	"errors"
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "x", "EMPTY": ""}
	for in, want := range map[string]string{
		"$(A)": "x", "a$(A)b": "axb", "$$(A)": "$(A)", "$(B)": "$(B)", "$A": "$A", "$": "$", "$(A": "$(A", "$$$(A)": "$x", "[$(EMPTY)]": "[]", "$(A)$(A)": "xx",
		"": "", "plain": "plain", ")$(": ")$(", "$(A)$(": "x$(",
	} {
		left := Container
		got, err := Expand(in, func(n string) (string, bool) { v, ok := vars[n]; return v, ok }, &left)
		if got != want || err != nil || left != Container-Budget(len(want)) {
			t.Errorf("%q: %q, want %q; %v, %d left", in, got, want, err, left)
		}
	}
}

func TestBudget(t *testing.T) {
	left := Budget(10)
	if _, err := Expand("12345", nil, &left); err != nil || left != 5 {
		t.Errorf("%v, %d left", err, left)
	}
	long := strings.Repeat("v", 4)
	if s, err := Expand(strings.Repeat("$(A)", 1<<20), func(string) (string, bool) { return long, true }, &left); !errors.Is(err, ErrTooLarge) || s != "" {
		t.Errorf("%d bytes, %v", len(s), err)
	}
	left = 5 << 20
	if _, err := Expand(strings.Repeat("$(", 2<<20), nil, &left); err != nil || left != 1<<20 {
		t.Errorf("%v, %d left", err, left)
	}
}
