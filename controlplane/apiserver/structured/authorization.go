package structured

import (
	"fmt"
	"os"
	"strings"
	"sync"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
)

// Reviews compiles expressions about access reviews.
var Reviews = sync.OnceValue(authorizationcel.NewDefaultCompiler)

// The modes of authorisation.
const (
	AlwaysAllow = "AlwaysAllow"
	AlwaysDeny  = "AlwaysDeny"
	ABAC        = "ABAC"
	Webhook     = "Webhook"
	RBAC        = "RBAC"
	Node        = "Node"
)

// Modes are all of them.
var Modes = []string{AlwaysAllow, AlwaysDeny, ABAC, Webhook, RBAC, Node}

// Authorization says which authorisers there are, in their order.
type Authorization struct {
	*apiserver.AuthorizationConfiguration
	// File it was read from, and is followed by; empty: from flags.
	File string
	// Policies is the file of ABAC.
	Policies string
	data     string
	// required are the types that the first configuration named.
	required sets.Set[apiserver.AuthorizerType]
}

// ReadAuthorization reads and judges file.
func ReadAuthorization(file string) (*Authorization, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	c, err := parseAuthorization(data, nil)
	if err != nil {
		return nil, err
	}
	a := &Authorization{AuthorizationConfiguration: c, File: file, data: string(data), required: sets.New[apiserver.AuthorizerType]()}
	for _, z := range c.Authorizers {
		if z.Type != apiserver.TypeWebhook {
			a.required.Insert(z.Type)
		}
	}
	return a, nil
}

// Again reads the file once more: nil when it has not changed. Authorisers of
// this process may not be dropped from it.
func (a *Authorization) Again() (*Authorization, error) {
	data, err := os.ReadFile(a.File)
	if err != nil {
		return nil, err
	}
	if string(data) == a.data {
		return nil, nil
	}
	a.data = string(data)
	c, err := parseAuthorization(data, a.required)
	if err != nil {
		return nil, err
	}
	return &Authorization{AuthorizationConfiguration: c, File: a.File, Policies: a.Policies, data: a.data, required: a.required}, nil
}

func parseAuthorization(data []byte, required sets.Set[apiserver.AuthorizerType]) (*apiserver.AuthorizationConfiguration, error) {
	c, err := authorization(data)
	if err != nil {
		return nil, fmt.Errorf("failed to load AuthorizationConfiguration from file: %w", err)
	}
	if errs := validation.ValidateAuthorizationConfiguration(Reviews(), nil, c, sets.New(Modes...), sets.New(Webhook)); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	var errs []error
	seen := sets.New[apiserver.AuthorizerType]()
	for _, z := range c.Authorizers {
		if z.Type == apiserver.TypeWebhook {
			continue
		}
		seen.Insert(z.Type)
		if want := strings.ToLower(string(z.Type)); z.Name != want {
			errs = append(errs, fmt.Errorf("expected name %s for authorizer %s instead of %s", want, z.Type, z.Name))
		}
	}
	if missing := required.Difference(seen); len(missing) > 0 {
		errs = append(errs, fmt.Errorf("missing required types: %v", sets.List(missing)))
	}
	return c, utilerrors.NewAggregate(errs)
}
