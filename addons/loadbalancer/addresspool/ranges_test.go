package addresspool

import (
	"fmt"
	"strings"
	"testing"
)

func TestRanges(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.0/30":              "192.0.2.0-192.0.2.3",
		"192.0.2.5/30":              "192.0.2.4-192.0.2.7",
		"192.0.2.10-192.0.2.20":     "192.0.2.10-192.0.2.20",
		" 192.0.2.10 - 192.0.2.20 ": "192.0.2.10-192.0.2.20",
		"192.0.2.7":                 "192.0.2.7-192.0.2.7",
		"2001:db8::/126":            "2001:db8::-2001:db8::3",
		"::ffff:192.0.2.7":          "192.0.2.7-192.0.2.7",
		"192.0.2.20-192.0.2.10":     "ends before it begins",
		"192.0.2.1-2001:db8::1":     "two families",
		"127.0.0.1-127.0.0.9":       "no client can ask",
		"fe80::1":                   "no client can ask",
		"fe80::1%eth0":              "names a link",
		"some":                      "is no range",
		"":                          "is no range",
		strings.Repeat("1", 5000):   "is no range",
	} {
		ranges, problems := Spec{Addresses: []string{text}}.Ranges()
		got := strings.Join(problems, "")
		if len(ranges) == 1 {
			got = fmt.Sprintf("%s-%s", ranges[0].First, ranges[0].Last)
		}
		if !strings.Contains(got, want) || len(ranges)+len(problems) != 1 {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	many := make([]string, maxRanges+5)
	for i := range many {
		many[i] = "192.0.2.1"
	}
	if ranges, problems := (Spec{Addresses: many}).Ranges(); len(ranges) != maxRanges || len(problems) != 1 {
		t.Errorf("%d ranges, %v", len(ranges), problems)
	}
}

func FuzzRange(f *testing.F) {
	for _, s := range []string{"192.0.2.0/30", "192.0.2.1-192.0.2.3", "2001:db8::/64", "::1%lo"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parse(s)
		if err == nil && (!r.Contains(r.First) || !r.Contains(r.Last) || r.Last.Less(r.First)) {
			t.Errorf("%q: %v", s, r)
		}
	})
}
