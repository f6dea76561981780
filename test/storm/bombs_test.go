package storm

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"google.golang.org/protobuf/encoding/protowire"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
)

const (
	configMaps = "/api/v1/namespaces/storm/configmaps"
	asJSON     = "application/json"
	asYAML     = "application/yaml"
	asProtobuf = "application/vnd.kubernetes.protobuf"
)

// megabytes of a text, at least.
func megabytes(n int, text string) string { return strings.Repeat(text, n<<20/len(text)+1) }

// nested is depth times one inside the other.
func nested(depth int, open, inside, end string) string {
	return strings.Repeat(open, depth) + inside + strings.Repeat(end, depth)
}

// laughs is YAML whose aliases multiply.
func laughs() string {
	var b strings.Builder
	b.WriteString("kind: ConfigMap\napiVersion: v1\nmetadata: {name: laughs}\na0: &a0 [l,l,l,l,l,l,l,l,l,l]\n")
	for i := range 12 {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	return b.String()
}

// many is a JSON object of n fields.
func many(n int, value string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"k%d":%s`, i, value)
	}
	b.WriteByte('}')
	return b.String()
}

// items is a JSON list of n texts made from their place.
func items(n int, text string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(text, i)
	}
	return "[" + strings.Join(all, ",") + "]"
}

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.String()
}

// longField is protobuf that says that it is longer than it is.
func longField() string {
	return "k8s\x00" + string(protowire.AppendVarint([]byte{0x12}, 1<<62)) + "x"
}

// A sent is a request that is made many times at once, and what its answer says.
type sent struct {
	method, path, kind, body, want string
	header                         http.Header
}

// send makes each of the requests, n at a time.
func (s *storm) send(y *tally, n int, all ...sent) {
	for _, q := range all {
		var lost atomic.Int64
		together(n, n, func(int) {
			code, body := s.two.do(request{q.method, q.path, q.kind, q.header, strings.NewReader(q.body)})
			if code == 0 {
				// Too long a head for this client to send, or others' strangeness on
				// the same connection ended it, as a 401 does: ask again on one's own.
				code, body = s.one.do(request{q.method, q.path, q.kind, q.header, strings.NewReader(q.body)})
			}
			if code == 0 {
				lost.Add(1)
				s.t.Logf("no answer to %s %.100s: %s", q.method, q.path, body[max(0, len(body)-100):])
			}
			y.code(code, body, q.want)
		})
		if lost := lost.Load(); lost > int64(n)/2 {
			s.t.Errorf("%d of %d requests to %s %.100s were not answered", lost, n, q.method, q.path)
		}
	}
}

// attacks are in the order in which they are made. A head over the limit is
// answered before it has been read whole: the connection may end before the
// client sees the answer.
var attacks = append(append([]attack{
	{"aliases and depth", depth, []string{"400", "429"}, 700},
	{"many fields", manyFields, []string{"201", "400", "413", "422", "429"}, 900},
	{"bodies over 3 MB", tooLong, []string{"413", "429"}, 700},
	{"gzip, protobuf, nonsense", nonsense, []string{"400", "415", "429"}, 700},
	{"JSON patches", jsonPatches, []string{"413", "422", "400", "429"}, 900},
	{"merge patches", mergePatches, []string{"200", "400", "413", "422", "429"}, 1200},
	{"applied", applied, []string{"400", "422", "429"}, 1200},
	{"schemas", schemas, []string{"400", "422", "429"}, 900},
	{"rules", rules, []string{"201", "429"}, 900},
	{"selectors", selectors, []string{"200", "400", "429", "431", "closed"}, 900},
	{"paths, options, tokens", paths, []string{"400", "401", "403", "404", "406", "410", "429", "431", "closed"}, 700},
	{"numbers", numbers, []string{"seen"}, 700},
}, slowAttacks...), frameAttacks...)

func depth(s *storm, y *tally) {
	s.send(y, s.size(10, 100),
		sent{"POST", configMaps, asYAML, laughs(), "excessive aliasing", nil},
		sent{"POST", configMaps, asJSON, megabytes(2, "["), "max depth", nil},
		sent{"POST", configMaps, asJSON, `{"data":` + nested(500_000, `{"a":`, "1", "}") + "}", "max depth", nil},
		sent{"POST", configMaps, asYAML, "a: " + nested(100_000, "[", "", "]"), "depth", nil},
		sent{"POST", configMaps, asYAML, nested(1_000_000, "- ", "a", ""), "depth", nil},
	)
}

func manyFields(s *storm, y *tally) {
	n := s.size(30_000, 100_000)
	s.send(y, s.size(3, 20),
		sent{"POST", configMaps, asJSON, `{"metadata":{"generateName":"m"},"data":` + many(n, `"v"`) + "}", "", nil},
		sent{"POST", configMaps + "?fieldValidation=Strict", asJSON, `{"metadata":{"name":"unknown"},"x":` + many(n, `"v"`) + "," + strings.TrimPrefix(many(n/2, `"v"`), "{"), "unknown field", nil},
		sent{"POST", configMaps + "?fieldValidation=Strict", asYAML, "metadata: {name: twice}\n" + strings.Repeat("a: 1\n", n), "already set", nil},
		sent{"POST", configMaps, asJSON, `{"metadata":{"name":"labels","labels":` + many(n/2, `"-"`) + "}}", "", nil},
		sent{"POST", configMaps, asJSON, `{"metadata":{"name":"owners","ownerReferences":` + items(n/2, `{"name":"o%d"}`) + "}}", "", nil},
		sent{"POST", configMaps, asJSON, `{"metadata":{"name":"finalizers","finalizers":` + items(n, `"f%d"`) + "}}", "", nil},
	)
}

const over = "Request entity too large: limit is 3145728"

func tooLong(s *storm, y *tally) {
	body := `{"data":{"a":"` + megabytes(3, "x") + `"}}`
	s.send(y, s.size(20, 200),
		sent{"POST", configMaps, asJSON, body, over, nil},
		sent{"PUT", politeObject, asYAML, body, over, nil},
		sent{"PATCH", politeObject, "application/merge-patch+json", body, over, nil},
		sent{"PATCH", politeObject + "?fieldManager=a", "application/apply-patch+yaml", body, over, nil},
		sent{"DELETE", politeObject, asJSON, body, over, nil},
	)
	together(10, s.size(20, 100), func(int) { // of a length that is not said
		code, answer := s.two.do(request{"POST", configMaps, asJSON, nil, struct{ *strings.Reader }{strings.NewReader(body)}})
		y.code(code, answer, over)
	})
}

func nonsense(s *storm, y *tally) {
	encoded := http.Header{"Content-Encoding": {"gzip"}}
	s.send(y, s.size(3, 100),
		sent{"POST", configMaps, asJSON, gzipped(megabytes(500, " ")), "", encoded},
		sent{"POST", configMaps, asProtobuf, longField(), "", nil},
		sent{"POST", configMaps, asProtobuf, "k8s\x00" + megabytes(2, "\x0b"), "", nil},
		sent{"POST", configMaps, asProtobuf, megabytes(2, "\xff"), "", nil},
		sent{"POST", configMaps, asJSON, megabytes(2, "\x00"), "", nil},
		sent{"POST", configMaps, "a/" + megabytes(1, "a")[:100_000], "{}", "", nil},
	)
}

func jsonPatches(s *storm, y *tally) {
	copies := items(60, `{"op":"copy","from":"/metadata","path":"/metadata/x%d"}`)
	grow := `[{"op":"add","path":"/data","value":{"a":"` + megabytes(1, "x") + `"}},` + strings.TrimPrefix(items(20, `{"op":"copy","from":"/data/a","path":"/data/a%d"}`), "[")
	s.send(y, s.size(3, 50),
		sent{"PATCH", politeObject, "application/json-patch+json", copies, "", nil},
		sent{"PATCH", politeObject, "application/json-patch+json", grow, "", nil},
		sent{"PATCH", politeObject, "application/json-patch+json", items(10_001, `{"op":"test","path":"/kind","value":"%d"}`), "maximum operations", nil},
		sent{"PATCH", politeObject, "application/json-patch+json", `[{"op":"add","path":"/data` + megabytes(2, "/a") + `","value":1}]`, "", nil},
		sent{"PATCH", politeObject, "application/json-patch+json", `[{"op":"add","path":"/metadata/finalizers","value":[]},{"op":"add","path":"/metadata/finalizers/2000000000","value":"a"}]`, "", nil},
	)
}

const deployments = "/apis/apps/v1/namespaces/storm/deployments"

func mergePatches(s *storm, y *tally) {
	s.admin.must(s.t, "POST", deployments, `{"metadata":{"name":"d"},"spec":{"replicas":0,"selector":{"matchLabels":{"a":"b"}},
		"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	in := func(list string) string { return `{"spec":{"template":{"spec":` + list + `}}}` }
	const kind = "application/strategic-merge-patch+json"
	s.send(y, s.size(2, 20),
		sent{"PATCH", deployments + "/d", kind, in(`{"containers":` + items(30_000, `{"name":"c%d","image":"i"}`) + "}"), "", nil},
		sent{"PATCH", deployments + "/d", kind, in(`{"$setElementOrder/containers":` + items(9_000, `{"name":"c%d"}`) + "}"), "", nil},
		sent{"PATCH", deployments + "/d", kind, in(`{"containers":` + items(9_000, `{"name":"c%d","$patch":"delete"}`) + "}"), "", nil},
		sent{"PATCH", politeObject, "application/merge-patch+json", `{"metadata":{"name":"other","annotations":` + many(100_000, `"v"`) + "}}", "", nil},
		sent{"PATCH", politeObject, "application/merge-patch+json", nested(200_000, `{"a":`, "1", "}"), "max depth", nil},
	)
}

func applied(s *storm, y *tally) {
	const kind = "application/apply-patch+yaml"
	head := `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":`
	s.send(y, s.size(2, 20),
		sent{"PATCH", deployments + "/d?force=1&fieldManager=a", kind, head + items(s.size(2_000, 20_000), `{"name":"C%d"}`) + "}}}}", "", nil},
		sent{"PATCH", deployments + "/d?force=1&fieldManager=a", kind, head + `[{"name":"c","env":` + items(s.size(5_000, 50_000), `{"name":"e"}`) + "}]}}}}", "", nil},
		sent{"PATCH", politeObject + "?fieldManager=a", kind, laughs(), "excessive aliasing", nil},
		sent{"PATCH", politeObject + "?fieldManager=a", kind, "a: " + strings.Repeat("[", 200_000), "depth", nil},
	)
}

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// definition declares a kind whose spec has a schema.
func definition(plural, spec string) string {
	return fmt.Sprintf(`{"metadata":{"name":"%[1]s.storm.test"},"spec":{"group":"storm.test","scope":"Namespaced","names":{"plural":%[1]q,"kind":%[1]q},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":%[2]s}}}}]}}`, plural, spec)
}

func schemas(s *storm, y *tally) {
	text := `{"type":"object","properties":{"a":`
	s.send(y, s.size(1, 20),
		sent{"POST", definitions, asJSON, definition("deep", nested(20_000, text, `{"type":"string"}`, "}}")), "", nil},
		sent{"POST", definitions, asJSON, definition("logic", nested(3_000, `{"allOf":[`, `{"type":"string"}`, "]}")), "", nil},
		sent{"POST", definitions, asJSON, definition("pattern", `{"type":"string","pattern":"`+nested(1000, "(", "a", "{1,1000})")+`"}`), "", nil},
		sent{"POST", definitions, asJSON, definition("cost", `{"type":"array","items":{"type":"array","items":{"type":"array","items":{"type":"string"}}},"x-kubernetes-validations":[{"rule":"self.all(a, a.all(b, b.all(c, self.all(d, d.all(e, e.all(f, c != f))))))"}]}`), "exceeds budget", nil},
		sent{"POST", definitions, asJSON, definition("long", `{"type":"string","x-kubernetes-validations":[{"rule":"`+megabytes(2, "self == self && ")+`true"}]}`), "", nil},
		sent{"POST", definitions, asJSON, definition("nested", `{"type":"string","x-kubernetes-validations":[{"rule":"`+nested(100_000, "(", "true", ")")+`"}]}`), "", nil},
		sent{"POST", definitions, asJSON, definition("manyrules", `{"type":"string","x-kubernetes-validations":`+items(2_000, `{"rule":"self + '%d' == self"}`)+`}`), "", nil},
	)
}

// rules are as dear as a definition may make them.
func rules(s *storm, y *tally) {
	s.admin.must(s.t, "POST", definitions, definition("dears", `{"type":"object","properties":{"list":{"type":"array","maxItems":100,"items":{"type":"string","maxLength":100}}},
		"x-kubernetes-validations":[{"rule":"self.list.all(a, self.list.exists(b, b + a == 'no') || true)"}]}`))
	path := "/apis/storm.test/v1/namespaces/storm/dears"
	s.until(path)
	s.send(y, s.size(10, 100), sent{"POST", path, asJSON, `{"kind":"dears","apiVersion":"storm.test/v1","metadata":{"generateName":"d"},"spec":{"list":` + items(100, `"%0100d"`) + "}}", "", nil})
}

func selectors(s *storm, y *tally) {
	set := "a in (" + strings.TrimSuffix(megabytes(1, "b,")[:900_000], ",") + ")"
	field := strings.TrimSuffix(megabytes(1, "metadata.name!=a,")[:17*50_000], ",")
	q := func(key, value string) string { return configMaps + "?" + key + "=" + url.QueryEscape(value) }
	s.send(y, s.size(3, 100),
		sent{"GET", configMaps + "?labelSelector=" + strings.ReplaceAll(set, " ", "+"), "", "", "", nil},
		sent{"GET", configMaps + "?fieldSelector=" + field, "", "", "", nil},
		sent{"GET", q("labelSelector", nested(300_000, "(", "a", ")")[:300_000]), "", "", "", nil},
		sent{"GET", q("labelSelector", megabytes(2, "a,")), "", "", "", nil},
		sent{"GET", configMaps + "?watch=1&timeoutSeconds=1&labelSelector=" + strings.ReplaceAll(set, " ", "+"), "", "", "", nil},
		sent{"DELETE", configMaps + "?dryRun=All&labelSelector=" + strings.ReplaceAll(set, " ", "+"), "", "", "", nil},
	)
}

func paths(s *storm, y *tally) {
	long := megabytes(1, "a")[:900_000]
	groups := http.Header{"Impersonate-User": {"a"}}
	for i := range 20_000 {
		groups.Add("Impersonate-Group", fmt.Sprint("g", i))
	}
	s.send(y, s.size(3, 100),
		sent{"GET", "/" + long, "", "", "", nil},
		sent{"GET", "/api/v1/namespaces/" + long + "/pods/" + "x", "", "", "", nil},
		sent{"GET", "/" + megabytes(1, "a/")[:900_000], "", "", "", nil},
		sent{"GET", configMaps + "?continue=" + long, "", "", "", nil},
		sent{"GET", configMaps + "/polite", "", "", "", http.Header{"Authorization": {"Bearer " + long}}},
		sent{"GET", configMaps + "/polite", "", "", "", http.Header{"Authorization": {"Bearer " + strings.Repeat("a.", 400_000)}}},
		sent{"GET", configMaps + "/absent", "", "", "", groups},
		sent{"GET", configMaps + "/absent", "", "", "", http.Header{"Accept": {megabytes(1, "a/b,")[:900_000]}}},
		sent{"GET", "/api/v1", "", "", "", http.Header{"X": {megabytes(10, "x")}}},
	)
}
