package authz

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/controlplane/apiserver/structured"
)

// hook is a webhook that allows ann and denies bob, and counts.
func hook(t *testing.T, asked *int) (kubeconfig string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked++
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: review.Spec.User == "ann", Denied: review.Spec.User == "bob"}
		if review.Spec.User == "large" {
			review.Status.Reason = strings.Repeat("x", 2<<20)
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Log(err)
		}
	}))
	t.Cleanup(srv.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	write(t, kubeconfig, `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"`+srv.URL+`"}}]}`)
	return kubeconfig
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const config = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- {type: AlwaysDeny, name: alwaysdeny}
- type: Webhook
  name: hook
  webhook: {timeout: 3s, subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1, failurePolicy: %s,
    authorizedTTL: 1m, unauthorizedTTL: 1m, cacheUnauthorizedRequests: %v, connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}}
`

func decide(t *testing.T, z Authorizer, name string, change ...func(*Attributes)) authorizer.Decision {
	t.Helper()
	a := &Attributes{User: &user.DefaultInfo{Name: name}, Verb: "get", Resource: "pods", IsResource: true}
	for _, c := range change {
		c(a)
	}
	d, _, _ := z.Authorize(context.Background(), a)
	return d
}

func TestReload(t *testing.T) {
	asked := 0
	kubeconfig := hook(t, &asked)
	file := filepath.Join(t.TempDir(), "authz.yaml")
	good := fmt.Sprintf(config, "Deny", false, kubeconfig)
	write(t, file, good)
	read, err := structured.ReadAuthorization(file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewConfigured(read, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ann", "ann", "bob", "bob", "carl", "carl"} {
		want := map[string]authorizer.Decision{"ann": authorizer.DecisionAllow, "bob": authorizer.DecisionDeny, "carl": authorizer.DecisionNoOpinion}[name]
		if got := decide(t, c, name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if asked != 5 { // what is not allowed is not remembered
		t.Errorf("asked %d times", asked)
	}
	long := func(a *Attributes) { a.Name = strings.Repeat("n", 10001) }
	for range 2 {
		decide(t, c, "ann", long)
	}
	if asked != 7 {
		t.Errorf("asked %d times: a long name is remembered", asked)
	}
	if got := decide(t, c, "large"); got != authorizer.DecisionDeny {
		t.Errorf("an answer without end: %v", got)
	}
	before := c.chain.Load()
	for name, text := range map[string]string{
		"rubbish":                "{",
		"no authorisers":         "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n",
		"the own one is missing": good[:strings.Index(good, "- {type")] + good[strings.Index(good, "- type"):],
		"another own one":        good + "- {type: RBAC, name: rbac}\n",
		"no such kubeconfig":     fmt.Sprintf(config, "Deny", true, kubeconfig+"x"),
	} {
		write(t, file, text)
		if err := c.reload(t.Context()); err == nil || c.chain.Load() != before {
			t.Errorf("%s: taken over, %v", name, err)
		}
		if err := c.reload(t.Context()); err != nil {
			t.Errorf("%s is told twice: %v", name, err)
		}
	}
	write(t, file, fmt.Sprintf(config, "NoOpinion", true, kubeconfig))
	if err := c.reload(t.Context()); err != nil || c.chain.Load() == before {
		t.Fatalf("not taken over: %v", err)
	}
	asked = 0
	for range 2 {
		if got := decide(t, c, "bob"); got != authorizer.DecisionDeny {
			t.Errorf("%v", got)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	if got := decide(t, c, "large"); got != authorizer.DecisionNoOpinion {
		t.Errorf("an answer without end: %v", got)
	}
}

func TestABAC(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policies")
	write(t, file, `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"ann","group":"g","namespace":"n","resource":"pods","apiGroup":""}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"namespace":"*","resource":"*","apiGroup":"*"}}
{"user":"old"}
`)
	l, err := ReadABAC(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user   user.DefaultInfo
		change func(*Attributes)
		want   authorizer.Decision
	}{
		{user.DefaultInfo{Name: "ann", Groups: []string{"g"}}, nil, authorizer.DecisionAllow},
		{user.DefaultInfo{Name: "ann"}, nil, authorizer.DecisionNoOpinion},
		{user.DefaultInfo{Name: "ann", Groups: []string{"*"}}, nil, authorizer.DecisionNoOpinion},
		{user.DefaultInfo{Name: "bob", Groups: []string{"g"}}, nil, authorizer.DecisionNoOpinion},
		{user.DefaultInfo{Name: "ann", Groups: []string{"g"}}, func(a *Attributes) { a.Group = "apps" }, authorizer.DecisionNoOpinion},
		{user.DefaultInfo{Name: "ann", Groups: []string{"g"}}, func(a *Attributes) { a.Namespace = "m" }, authorizer.DecisionNoOpinion},
		{user.DefaultInfo{}, nil, authorizer.DecisionNoOpinion}, // a policy about nobody is about nobody
		{user.DefaultInfo{Name: "old"}, func(a *Attributes) { a.Verb, a.Group, a.Resource = "delete", "x", "y" }, authorizer.DecisionAllow},
		{user.DefaultInfo{Name: "old"}, func(a *Attributes) { a.IsResource, a.Path = false, "/x" }, authorizer.DecisionAllow},
	} {
		a := &Attributes{User: &c.user, Verb: "create", Namespace: "n", Resource: "pods", IsResource: true}
		if c.change != nil {
			c.change(a)
		}
		if got, _, _ := l.Authorize(t.Context(), a); got != c.want {
			t.Errorf("%+v %+v: %v", c.user, a, got)
		}
	}
}

// Labels that a selector asks for say no more than the selector.
func TestRequirements(t *testing.T) {
	for raw, want := range map[string]int{"": 0, "a=b": 1, "a in (b,c),!d,e,f!=g": 4, "a>1": 0, "a>1,b": 1, "!!": 0} {
		if got := labelRequirements(raw); len(got) != want {
			t.Errorf("%s: %v", raw, got)
		}
	}
	for raw, want := range map[string]int{"": 0, "a=b,c!=d": 2, "!!": 0} {
		if got := fieldRequirements(raw); len(got) != want {
			t.Errorf("%s: %v", raw, got)
		}
	}
}
