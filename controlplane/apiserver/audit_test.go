package apiserver_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/audit"
	"knarr/internal/apitest"
)

type asking struct{ id, verb, path, body, media, token, accept string }

// asked are the requests whose events upstream wrote to testdata/audit.jsonl.
var asked = []asking{
	{"id-0", "POST", "/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"z"},"data":{"k":"v"}}`, "", "", ""},
	{"id-1", "GET", "/configmaps/z", "", "", "", ""},
	{"id-2", "GET", "/configmaps?fieldSelector=metadata.name%3Dz", "", "", "", ""},
	{"id-3", "PUT", "/configmaps/z", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"z"},"data":{"k":"w"}}`, "", "", ""},
	{"id-4", "PATCH", "/configmaps/z", `{"data":{"k":"x"}}`, "application/merge-patch+json", "", ""},
	{"id-7", "DELETE", "/configmaps/z", `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}`, "", "", ""},
	{"id-8", "GET", "/configmaps/z", "", "", "", ""},
	{"id-9", "POST", "/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"A_"}}`, "", "", ""},
	{"id-10", "POST", "/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"z"},"data":{"k":"dg=="}}`, "", "", ""},
	{"id-11", "DELETE", "/secrets/z", "", "", "", ""},
	{"id-14", "GET", "/apis", "", "", "", ""},
	{"id-15", "GET", "/secrets/none", "", "", "", ""},
	{"id-16", "GET", "/secrets", "", "", "nope", ""},
}

// long are those whose events upstream wrote to testdata/audit-truncated.jsonl,
// none longer than longest.
var long = []asking{
	{"id-0", "POST", "/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"z"},"data":{"k":"` + strings.Repeat("v", 5000) + `"}}`, "", "", ""},
	{"id-1", "GET", "/configmaps/z", "", "", "", ""},
	{"id-2", "GET", "/configmaps/z?pretty=1", "", "", "", ""},
	{"id-3", "GET", "/configmaps/z", "", "", "", "application/vnd.kubernetes.protobuf"},
	{"id-4", "GET", "/configmaps/z", "", "", "", "application/yaml"},
	{"id-5", "GET", "/configmaps?fieldSelector=metadata.name%3Dz", "", "", "", ""},
	{"id-6", "GET", "/configmaps?fieldSelector=metadata.name%3Dy", "", "", "", ""},
	{"id-7", "GET", "/configmaps/z", "", "", "", "application/json;as=Table;v=v1;g=meta.k8s.io"},
	{"id-8", "PATCH", "/configmaps/z", `{"data":{"l":"x"}}`, "application/merge-patch+json", "", ""},
	{"id-9", "GET", "/secrets/none?x=" + strings.Repeat("y", 4000), "", "", "", ""},
	{"id-10", "GET", "/configmaps/none?x=" + strings.Repeat("y", 4000), "", "", "", ""},
	{"id-11", "GET", "/configmaps/none", "", "", "", ""},
	{"id-12", "POST", "/apis/apps/v1/namespaces/default/controllerrevisions", `{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{"name":"z"},"revision":1,"data":{"k":"` + strings.Repeat("v", 5000) + `"}}`, "", "", ""},
	{"id-13", "DELETE", "/apis/apps/v1/namespaces/default/controllerrevisions/z", "", "", "", ""},
	{"id-14", "DELETE", "/configmaps/z", "", "", "", ""},
}

const longest = 3000

// TestAuditIsUpstreams: the same requests under the same policy leave the same
// events.
func TestAuditIsUpstreams(t *testing.T) {
	compareAudit(t, "testdata/audit.jsonl", asked, len(asked), audit.Truncating{})
}

// TestAuditTruncates: nor are the events of long requests others, and those
// that no truncation makes short are missing in both.
func TestAuditTruncates(t *testing.T) {
	compareAudit(t, "testdata/audit-truncated.jsonl", long, len(long)-2, audit.Truncating{Enabled: true, MaxEvent: longest, MaxBatch: longest})
}

func compareAudit(t *testing.T, file string, asked []asking, leave int, truncate audit.Truncating) {
	t.Helper()
	recorded, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := audit.Load("testdata/audit-policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		policy.To("log", audit.NewLog(&log, audit.JSON), false, truncate)
		s, stop := apitest.New(t, func(c *apiserver.Config) {
			c.Audit = policy
			c.Tokens = map[string]user.Info{"good": &user.DefaultInfo{Name: "admin", UID: "1", Groups: []string{user.SystemPrivilegedGroup}}}
		})
		defer stop()
		log.Reset()
		for _, a := range asked {
			path := a.path
			if !strings.HasPrefix(path, "/apis") {
				path = "/api/v1/namespaces/default" + path
			}
			r := httptest.NewRequestWithContext(t.Context(), a.verb, path, strings.NewReader(a.body))
			r.RemoteAddr = "127.0.0.1:1"
			r.Header.Set("User-Agent", "diff")
			r.Header.Set("Accept", cmp.Or(a.accept, "application/json"))
			r.Header.Set("Audit-ID", a.id)
			r.Header.Set("Authorization", "Bearer "+cmp.Or(a.token, "good"))
			if a.body != "" {
				r.Header.Set("Content-Type", cmp.Or(a.media, "application/json"))
			}
			if strings.HasSuffix(path, "secrets/none") {
				r.Header.Set("Impersonate-User", "bob")
				r.Header.Set("Impersonate-Group", "g")
			}
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)
			if w.Header().Get("Audit-Id") == "" {
				t.Errorf("%s: the answer does not say its audit id", path)
			}
		}
		got, want := events(t, log.Bytes()), events(t, recorded)
		for id, ev := range got {
			if !reflect.DeepEqual(ev, want[id]) {
				a, _ := json.Marshal(ev)
				b, _ := json.Marshal(want[id])
				t.Errorf("%s\n got %s\nwant %s", id, a, b)
			}
		}
		if len(got) != leave {
			t.Errorf("%d events of %d requests", len(got), len(asked))
		}
		if strings.Contains(log.String(), "dg==") {
			t.Error("the content of a Secret is in the log")
		}
	})
}

// events are those of the test's requests by id and stage, without what no two
// runs share.
func events(t *testing.T, lines []byte) map[string]any {
	t.Helper()
	out := map[string]any{}
	for line := range bytes.Lines(lines) {
		var ev map[string]any
		if err := json.Unmarshal(line, &ev); err != nil {
			t.Fatal(err)
		}
		if ev["userAgent"] == "diff" {
			out[ev["auditID"].(string)+" "+ev["stage"].(string)] = same(ev, "")
		}
	}
	return out
}

var differing = []string{"uid", "resourceVersion", "creationTimestamp", "requestReceivedTimestamp", "stageTimestamp"}

func same(v any, key string) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = same(e, k)
		}
	case []any:
		for i, e := range v {
			v[i] = same(e, key)
		}
	case string:
		if slices.Contains(differing, key) {
			return "X"
		}
	}
	return v
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestAuditStrict: what cannot be written down is refused, if that is wanted.
func TestAuditStrict(t *testing.T) {
	file := t.TempDir() + "/policy.yaml"
	if err := os.WriteFile(file, []byte(`{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, strict := range []bool{false, true} {
		policy, err := audit.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		policy.To("log", audit.NewLog(broken{}, audit.JSON), strict, audit.Truncating{})
		synctest.Test(t, func(t *testing.T) {
			s, stop := apitest.New(t, func(c *apiserver.Config) { c.Audit = policy })
			defer stop()
			w := httptest.NewRecorder()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/readyz", nil))
			want := 200
			if strict {
				want = 500
			}
			if w.Code != want {
				t.Errorf("strict %v: %d %s", strict, w.Code, w.Body)
			}
			if policy.Dropped() == 0 {
				t.Errorf("strict %v: no event counted as dropped", strict)
			}
		})
	}
}
