package audit

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// A policy file is read or refused, and one that was read can judge requests.
func FuzzPolicy(f *testing.F) {
	f.Add([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Request\n  users: [a]\n  verbs: [get]\n  resources: [{group: '', resources: ['pods/*'], resourceNames: [x]}]\n- level: Metadata\n  nonResourceURLs: ['/api*']\n- level: None\n"))
	f.Add([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: RequestResponse, namespaces: [''], userGroups: ['system:*'], omitManagedFields: true}]\n"))
	f.Add([]byte("apiVersion: audit.k8s.io/v1beta1\nkind: Policy"))
	f.Add([]byte("a: &a [*a]"))
	file := filepath.Join(f.TempDir(), "policy")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := Load(file)
		if err != nil {
			return
		}
		who := &user.DefaultInfo{Name: "a", Groups: []string{"system:authenticated"}}
		for _, a := range []authorizer.AttributesRecord{
			{User: who, Verb: "get", ResourceRequest: true, Resource: "pods", Subresource: "log", Namespace: "n", Name: "x"},
			{User: who, Verb: "get", Path: "/api/"},
			{Verb: "", Path: ""},
		} {
			if level, omit, _ := p.level(a); level == "" || omit("ResponseComplete") && omit("") {
				t.Fatalf("%q: level %q of %+v", data, level, a)
			}
		}
	})
}

// What was answered is written down as JSON, or not at all.
func FuzzAnswer(f *testing.F) {
	f.Add(0, []byte(`{"kind":"PodList","items":[{"metadata":{"managedFields":[{}]}}]}`), true)
	f.Add(0, []byte(`{"kind":"Pod","metadata":{"managedFields":1}}`), true)
	f.Add(1, []byte("kind: Pod\nmetadata: {name: a}\n"), false)
	f.Add(2, []byte("k8s\x00\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x00"), true)
	types := []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	f.Fuzz(func(t *testing.T, kind int, body []byte, omit bool) {
		a := &answer{ResponseWriter: discard{"Content-Type": {types[uint(kind)%3]}}, trail: &Trail{omitManaged: omit}, keep: true, room: 1 << 10}
		_, _ = a.Write(body)
		if a.cut != (len(body) > a.room) || a.body.Len() > a.room {
			t.Fatalf("%d bytes, %d kept of at most %d, cut %v", len(body), a.body.Len(), a.room, a.cut)
		}
		if d := a.document(omit); d != nil && !json.Valid(d.Raw) {
			t.Fatalf("%q", d.Raw)
		}
	})
}

type discard http.Header

func (d discard) Header() http.Header         { return http.Header(d) }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}
