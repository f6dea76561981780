package cluster

import (
	"os"
	"strings"
	"testing"
)

func TestParseToken(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	for _, c := range []struct {
		in     string
		want   joinToken
		reason string // part of the error
	}{
		{in: "K10" + hash + "::node:s3cret", want: joinToken{hash, "s3cret", false}},
		{in: "K10" + hash + "::server:s3cret", want: joinToken{hash, "s3cret", true}},
		{in: "K10" + strings.ToUpper(hash) + "::node:a:b", want: joinToken{hash, "a:b", false}},
		{in: "s3cret", want: joinToken{"", "s3cret", false}},
		{in: "K10", want: joinToken{"", "K10", false}},
		{in: "K10abc::node:s3cret", reason: "not the hash of a CA"},
		{in: "K10" + hash + "::node:", reason: "does not end with ::node:"},
		{in: "K10" + hash + "::admin:s3cret", reason: "does not end with ::node:"},
		{in: "K10" + hash + "::s3cret", reason: "does not end with ::node:"},
		{in: "K10" + hash + "::node:two words", reason: "does not end with ::node:"},
		{in: "two words", reason: "no blanks"},
		{in: "", reason: "at least one character"},
	} {
		got, err := parseToken(c.in)
		switch {
		case c.reason == "" && (err != nil || got != c.want):
			t.Errorf("%q: %v, %v, want %v", c.in, got, err, c.want)
		case c.reason != "" && (err == nil || !strings.Contains(err.Error(), c.reason)):
			t.Errorf("%q: %v, want %s", c.in, err, c.reason)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("K10" + strings.Repeat("0a", 32) + "::node:s3cret")
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := parseToken(s); err == nil && got.caHash != "" {
			if again, err := parseToken(got.String()); err != nil || again != got {
				t.Errorf("%q: %v, then %v, %v", s, got, again, err)
			}
		}
	})
}

// The secret is made once, kept, and gives way to one that is given.
func TestServerToken(t *testing.T) {
	l := layout{t.TempDir()}
	first, err := keepToken(l.tokenFile(), "", []byte("ca"), false)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := keepToken(l.tokenFile(), "", []byte("ca"), false); err != nil || again != first || len(first.secret) < 26 {
		t.Errorf("%v, then %v, %v", first, again, err)
	}
	if given, err := keepToken(l.tokenFile(), "mine", []byte("ca"), false); err != nil || given.secret != "mine" {
		t.Errorf("%v, %v", given, err)
	}
	st, err := os.Stat(l.tokenFile())
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if err := os.WriteFile(l.tokenFile(), []byte("K10zz::x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keepToken(l.tokenFile(), "", []byte("ca"), false); err == nil || !strings.Contains(err.Error(), "remove it for a new one") {
		t.Errorf("%v", err)
	}
}
