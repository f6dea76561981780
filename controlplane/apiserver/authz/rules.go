package authz

import (
	"errors"

	authorizationv1 "k8s.io/api/authorization/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Rules are what a user may do in a namespace, as far as it can be listed.
type Rules struct {
	Resource    []authorizationv1.ResourceRule
	NonResource []authorizationv1.NonResourceRule
	// Incomplete says that there may be more; Err says why.
	Incomplete bool
	Err        error
}

// A Lister is an authoriser that can list what a user may do, or say why not.
type Lister interface {
	Rules(who user.Info, namespace string) Rules
}

// Rules are those of all authorisers.
func (c Chain) Rules(who user.Info, namespace string) (all Rules) {
	var errs []error
	for _, z := range c {
		l, ok := z.(Lister)
		if !ok {
			continue
		}
		r := l.Rules(who, namespace)
		all.Resource = append(all.Resource, r.Resource...)
		all.NonResource = append(all.NonResource, r.NonResource...)
		all.Incomplete = all.Incomplete || r.Incomplete
		errs = append(errs, r.Err)
	}
	all.Err = utilerrors.NewAggregate(errs)
	return all
}

// Rules of a node are not listed.
func (*Node) Rules(who user.Info, _ string) (r Rules) {
	if _, node := NodeName(who.GetName(), who.GetGroups()); node {
		r.Incomplete, r.Err = true, errors.New("node authorizer does not support user rule resolution")
	}
	return r
}

// Rules are those of the roles bound to who.
func (r *RBAC) Rules(who user.Info, namespace string) (all Rules) {
	for _, rule := range r.PolicyRules(&Attributes{User: who, Namespace: namespace}) {
		if len(rule.Resources) > 0 {
			all.Resource = append(all.Resource, authorizationv1.ResourceRule{
				Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames})
		}
		if len(rule.NonResourceURLs) > 0 {
			all.NonResource = append(all.NonResource, authorizationv1.NonResourceRule{Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs})
		}
	}
	return all
}
