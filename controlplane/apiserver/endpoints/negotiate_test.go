package endpoints

import (
	"net/http"
	"net/url"
	"testing"
)

// TestNegotiateTable: what has no form of a table is not one, and the client's
// next wish counts.
func TestNegotiateTable(t *testing.T) {
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	for _, c := range []struct {
		accept string
		tables bool
		as     string
		fails  bool
	}{
		{table, true, "Table", false},
		{table, false, "", true},
		{table + ",application/json", false, "", false},
		{"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", false, "PartialObjectMetadata", false},
	} {
		out, err := negotiateOf(&http.Request{URL: &url.URL{}, Header: http.Header{"Accept": {c.accept}}}, false, c.tables, false)
		if out.as != c.as || (err != nil) != c.fails {
			t.Errorf("%s, tables %v: %q, %v", c.accept, c.tables, out.as, err)
		}
	}
}
