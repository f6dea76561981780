package authz

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// A line of a policy file is read or refused, and nobody is allowed what it does
// not name.
func FuzzABAC(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"a","namespace":"*","resource":"pods","readonly":true}}`))
	f.Add([]byte(`{"user":"a","readonly":true}`))
	f.Add([]byte(`{"group":"*","nonResourcePath":"/x*"}`))
	f.Add([]byte(`{"apiVersion":"a/b/c","kind":"Policy"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		p, _, err := parsePolicy(line)
		if err != nil {
			return
		}
		l := ABAC{p}
		stranger := &user.DefaultInfo{Name: "system:anonymous", Groups: []string{user.AllUnauthenticated}}
		if bytes.Contains(line, []byte("nonymous")) || bytes.Contains(line, []byte("unauthenticated")) || bytes.ContainsRune(line, '\\') {
			return // he may be named
		}
		for _, a := range []*Attributes{
			{User: stranger, Verb: "get", IsResource: true, Resource: "pods", Namespace: "a"},
			{User: stranger, Verb: "get", Path: "/x"},
		} {
			if d, _, err := l.Authorize(context.Background(), a); d == authorizer.DecisionAllow || err != nil {
				t.Fatalf("%q allows a stranger: %v", line, err)
			}
		}
		l.Rules(stranger, "a")
	})
}

// What a webhook is told of a selector says no more than the selector does.
func FuzzSelectorOfWebhook(f *testing.F) {
	f.Add("a in (b,c),!d,e!=f", "metadata.name=p0,spec.nodeName!=")
	f.Add("a notin (), b>1", `x=\,`)
	f.Fuzz(func(t *testing.T, labels, fields string) {
		s := specOf(&Attributes{User: &user.DefaultInfo{Name: "a"}, IsResource: true, LabelSelector: labels, FieldSelector: fields})
		if _, err := json.Marshal(s); err != nil {
			t.Fatal(err)
		}
		if l := s.ResourceAttributes.LabelSelector; l != nil && len(l.Requirements) == 0 {
			t.Fatalf("%q: an empty selector", labels)
		}
		if l := s.ResourceAttributes.FieldSelector; l != nil && len(l.Requirements) == 0 {
			t.Fatalf("%q: an empty selector", fields)
		}
	})
}
