package main

import (
	"bytes"
	"testing"
	"time"

	"knarr/node/containerruntime"
)

func TestPrintImages(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	one := listedImage{"", []string{"a/b:1", "a/b:2"}, "sha256:0123456789abcdef", 2500000, at, true}
	first, second := one, one
	first.Node, second.Node, second.Names = "n1", "n2", []string{"a-longer-name:1"}
	for _, c := range []struct {
		form string
		all  []listedImage
		want string
	}{
		{"", nil, "NAME   DIGEST   SIZE   PINNED\n"},
		{"json", nil, "[]\n"},
		{"name", []listedImage{one}, "a/b:1\na/b:2\n"},
		{"", []listedImage{one}, "NAME    DIGEST                SIZE     PINNED\na/b:1   sha256:0123456789ab   2.5 MB   true\na/b:2   sha256:0123456789ab   2.5 MB   true\n"},
		{"wide", []listedImage{second}, "n2:\nNAME              DIGEST                    SIZE     PINNED   CREATED\na-longer-name:1   sha256:0123456789abcdef   2.5 MB   true     2026-01-02T03:04:05Z\n"},
		{"json", []listedImage{second}, `[
  {
    "node": "n2",
    "names": [
      "a-longer-name:1"
    ],
    "digest": "sha256:0123456789abcdef",
    "size": 2500000,
    "created": "2026-01-02T03:04:05Z",
    "pinned": true
  }
]
`},
		{"", []listedImage{first, second}, "n1:\nNAME    DIGEST                SIZE     PINNED\na/b:1   sha256:0123456789ab   2.5 MB   true\na/b:2   sha256:0123456789ab   2.5 MB   true\n" +
			"n2:\nNAME              DIGEST                SIZE     PINNED\na-longer-name:1   sha256:0123456789ab   2.5 MB   true\n"},
	} {
		var out bytes.Buffer
		if err := printImages(&out, c.all, c.form); err != nil || out.String() != c.want {
			t.Errorf("%q: %v\n%s\nwant\n%s", c.form, err, out.String(), c.want)
		}
	}
}

func TestPrintPulls(t *testing.T) {
	p := containerruntime.Pull{Repository: "a.io/b", Digest: "sha256:0123456789abcdef", Done: 1500000, Total: 6000000}
	for want, pulls := range map[string][]listedPull{
		"": nil,
		"\nPULLING   DIGEST                FETCHED\na.io/b    sha256:0123456789ab   1.5 of 6.0 MB (25%)\n":               {{"", p}},
		"\nNODE   PULLING   DIGEST                FETCHED\nn1     a.io/b    sha256:0123456789ab   1.5 of 6.0 MB (25%)\n": {{"n1", p}},
	} {
		var out bytes.Buffer
		if err := printPulls(&out, pulls); err != nil || out.String() != want {
			t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
		}
	}
}
