package endpoints

import (
	"fmt"
	"strings"
	"testing"
)

// TestPatchBombs: patches that would grow without bound are refused as upstream
// refuses them.
func TestPatchBombs(t *testing.T) {
	w := newWorld(t)
	w.fill(t, 1)
	const pod = "/api/v1/namespaces/bench/pods/p0"
	var copies []string
	for i := range 60 { // each doubles the object
		copies = append(copies, fmt.Sprintf(`{"op":"copy","from":"/metadata","path":"/metadata/x%d"}`, i))
	}
	for name, c := range map[string]struct {
		kind, body string
		code       int
		want       string
	}{
		"copies":        {"json-patch+json", "[" + strings.Join(copies, ",") + "]", 422, `"reason":"Invalid"`},
		"operations":    {"json-patch+json", "[" + strings.Repeat(`{"op":"test","path":"/kind","value":"Pod"},`, 10000) + `{"op":"test","path":"/kind","value":"Pod"}]`, 413, "The allowed maximum operations in a JSON patch is 10000, got 10001"},
		"place":         {"json-patch+json", `[{"op":"add","path":"/spec/containers/1000000000","value":{}}]`, 422, `"reason":"Invalid"`},
		"depth":         {"merge-patch+json", strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000), 400, "exceeded max depth"},
		"strategic":     {"strategic-merge-patch+json", strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000), 400, "exceeded max depth"},
		"items":         {"strategic-merge-patch+json", `{"spec":{"containers":[` + strings.Repeat(`{"name":"c"},`, 10000) + `{"name":"c"}]}}`, 413, "The allowed maximum items in a list of a strategic merge patch is 10000, got 10001"},
		"applied depth": {"apply-patch+yaml", "a: " + strings.Repeat("[", 20000), 400, "exceeded max depth"},
	} {
		t.Run(name, func(t *testing.T) {
			code, body, _ := w.do("PATCH", pod+"?fieldManager=f", "application/"+c.kind, c.body)
			if code != c.code || !strings.Contains(body, c.want) {
				t.Errorf("%d %.400s\nwant %d %s", code, body, c.code, c.want)
			}
		})
	}
}
