package authz

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"sigs.k8s.io/json"
)

// ABAC allows what a line of a policy file allows.
type ABAC []policy

// policy is one line: a subject and what it may do.
type policy struct {
	User            string `json:"user,omitempty"`
	Group           string `json:"group,omitempty"`
	Readonly        bool   `json:"readonly,omitempty"`
	APIGroup        string `json:"apiGroup,omitempty"`
	Resource        string `json:"resource,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
	NonResourcePath string `json:"nonResourcePath,omitempty"`
}

const abacVersion = "abac.authorization.kubernetes.io/v1beta1"

// ReadABAC reads a file of one policy a line; empty lines and those that begin
// with # say nothing.
func ReadABAC(file string) (ABAC, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	policies, old := ABAC{}, false
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		p, unversioned, err := parsePolicy([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("error reading policy file %s, line %d: %s: %w", file, n, lines.Text(), err)
		}
		old = old || unversioned
		policies = append(policies, p)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("error reading policy file %s: %w", file, err)
	}
	if old {
		slog.Warn("the policy file has lines without apiVersion and kind", "file", file)
	}
	return policies, nil
}

// parsePolicy reads a line; unversioned says that it is of the oldest form,
// whose empty fields mean anything.
func parsePolicy(line []byte) (p policy, unversioned bool, err error) {
	var kind metav1.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(line, &kind); err != nil {
		return p, false, fmt.Errorf("couldn't get version/kind; json parse error: %w", err)
	}
	switch {
	case kind.APIVersion == "" || kind.Kind == "":
		if err := json.UnmarshalCaseSensitivePreserveInts(line, &p); err != nil {
			return p, false, err
		}
		return p.versioned(), true, nil
	case kind.APIVersion != abacVersion || kind.Kind != "Policy":
		gv, err := schema.ParseGroupVersion(kind.APIVersion)
		if err != nil {
			return p, false, err
		}
		return p, false, runtime.NewNotRegisteredErrForKind("pkg/apis/abac/register.go", gv.WithKind(kind.Kind))
	}
	var whole struct {
		Spec policy `json:"spec"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(line, &whole); err != nil {
		return p, false, err
	}
	p = whole.Spec
	if p.User == "*" || p.Group == "*" {
		p.User, p.Group = "", user.AllAuthenticated
	}
	return p, false, nil
}

// versioned is what a policy of the oldest form means.
func (p policy) versioned() policy {
	if p.User == "*" || p.Group == "*" || p.User == "" && p.Group == "" {
		p.User, p.Group = "", user.AllAuthenticated
	}
	p.NonResourcePath = ""
	if p.Namespace == "" && p.Resource == "" {
		p.NonResourcePath = "*"
	}
	if p.Namespace == "" {
		p.Namespace = "*"
	}
	if p.Resource == "" {
		p.Resource = "*"
	}
	p.APIGroup = "*"
	return p
}

// concerns says that a policy is about a user: everything it names of him fits.
func (p *policy) concerns(u user.Info) bool {
	if p.User == "" && p.Group == "" || p.User != "" && p.User != u.GetName() {
		return false
	}
	return p.Group == "" || slices.Contains(u.GetGroups(), p.Group)
}

func (p *policy) allows(a *Attributes) bool {
	if !p.concerns(a.User) || p.Readonly && a.Verb != "get" && a.Verb != "list" && a.Verb != "watch" {
		return false
	}
	if !a.IsResource {
		prefix, open := strings.CutSuffix(p.NonResourcePath, "*")
		return p.NonResourcePath == a.Path || open && strings.HasPrefix(a.Path, strings.TrimRight(prefix, "*"))
	}
	return anyOr(p.Namespace, a.Namespace) && anyOr(p.Resource, a.Resource) && anyOr(p.APIGroup, a.Group)
}

func anyOr(want, is string) bool { return want == "*" || want == is }

// Authorize allows what a policy allows.
func (l ABAC) Authorize(_ context.Context, a *Attributes) (authorizer.Decision, string, error) {
	for i := range l {
		if l[i].allows(a) {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "No policy matched.", nil
}

// Rules lists the policies about a user.
func (l ABAC) Rules(who user.Info, namespace string) (r Rules) {
	for i := range l {
		p := &l[i]
		if !p.concerns(who) || !anyOr(p.Namespace, namespace) {
			continue
		}
		verbs := []string{"*"}
		if p.Readonly {
			verbs = []string{"get", "list", "watch"}
		}
		if p.Resource != "" {
			r.Resource = append(r.Resource, authorizationv1.ResourceRule{Verbs: verbs, APIGroups: []string{p.APIGroup}, Resources: []string{p.Resource}})
		}
		if p.NonResourcePath != "" {
			r.NonResource = append(r.NonResource, authorizationv1.NonResourceRule{Verbs: verbs, NonResourceURLs: []string{p.NonResourcePath}})
		}
	}
	return r
}
