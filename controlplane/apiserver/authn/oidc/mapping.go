package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/user"
)

func (c claims) read(name string, into any) error {
	raw, ok := c[name]
	if !ok {
		return errors.New("claim not present")
	}
	return json.Unmarshal(raw, into)
}

// user is who the claims make the bearer.
func (o *issuer) user(ctx context.Context, c claims) (*user.DefaultInfo, error) {
	r := &o.rules
	var value traits.Mapper
	if r.Username != nil || r.Groups != nil || r.UID != nil || r.Extra != nil || r.ClaimValidationRules != nil {
		value = claimsValue(c)
	}
	u := &user.DefaultInfo{}
	var err error
	if u.Name, err = o.username(ctx, c, value); err != nil {
		return nil, err
	}
	if u.Groups, err = o.groups(ctx, c, value); err != nil {
		return nil, err
	}
	if u.UID, err = o.uid(ctx, c, value); err != nil {
		return nil, err
	}
	if u.Extra, err = o.extra(ctx, c, value); err != nil {
		return nil, err
	}
	for claim, want := range o.required {
		if _, ok := c[claim]; !ok {
			return nil, fmt.Errorf("oidc: required claim %s not present in ID token", claim)
		}
		var got string
		if err := c.read(claim, &got); err != nil {
			return nil, fmt.Errorf("oidc: parse claim %s: %w", claim, err)
		}
		if got != want {
			return nil, fmt.Errorf("oidc: required claim %s value does not match. Got = %s, want = %s", claim, got, want)
		}
	}
	if r.ClaimValidationRules != nil {
		got, err := r.ClaimValidationRules.EvalClaimMappings(ctx, value)
		if err = errors.Join(err, allTrue(got)); err != nil {
			return nil, prefixed("error evaluating claim validation expression", err)
		}
	}
	if r.UserValidationRules != nil {
		got, err := r.UserValidationRules.EvalUser(ctx, userValue(u))
		if err = errors.Join(err, allTrue(got)); err != nil {
			return nil, prefixed("error evaluating user info validation rule", err)
		}
	}
	return u, nil
}

func (o *issuer) username(ctx context.Context, c claims, value traits.Mapper) (string, error) {
	m := o.config.ClaimMappings.Username
	if o.rules.Username != nil {
		name, err := oneString(ctx, o.rules.Username, value, "username")
		if err == nil && name == "" {
			err = errors.New("oidc: empty username via CEL expression is not allowed")
		}
		return name, err
	}
	var name string
	if err := c.read(m.Claim, &name); err != nil {
		return "", fmt.Errorf("oidc: parse username claims %q: %w", m.Claim, err)
	}
	if _, says := c["email_verified"]; says && m.Claim == "email" {
		var verified bool
		if err := c.read("email_verified", &verified); err != nil {
			return "", fmt.Errorf("oidc: parse 'email_verified' claim: %w", err)
		}
		if !verified {
			return "", errors.New("oidc: email not verified")
		}
	}
	if m.Prefix != nil {
		name = *m.Prefix + name
	}
	return name, nil
}

func (o *issuer) groups(ctx context.Context, c claims, value traits.Mapper) ([]string, error) {
	m := o.config.ClaimMappings.Groups
	if _, has := c[m.Claim]; m.Claim != "" && has {
		var groups oneOrMore
		if err := c.read(m.Claim, &groups); err != nil {
			return nil, fmt.Errorf("oidc: parse groups claim %q: %w", m.Claim, err)
		}
		if m.Prefix != nil {
			for i := range groups {
				groups[i] = *m.Prefix + groups[i]
			}
		}
		return groups, nil
	}
	if o.rules.Groups == nil {
		return nil, nil
	}
	got, err := o.rules.Groups.EvalClaimMapping(ctx, value)
	if err == nil {
		var groups []string
		if groups, err = stringList(got.EvalResult); err == nil {
			return groups, nil
		}
	}
	return nil, prefixed("error evaluating group claim expression", err)
}

func (o *issuer) uid(ctx context.Context, c claims, value traits.Mapper) (uid string, err error) {
	if claim := o.config.ClaimMappings.UID.Claim; claim != "" {
		if err := c.read(claim, &uid); err != nil {
			return "", fmt.Errorf("oidc: parse uid claim %q: %w", claim, err)
		}
		return uid, nil
	}
	if o.rules.UID == nil {
		return "", nil
	}
	return oneString(ctx, o.rules.UID, value, "uid")
}

func (o *issuer) extra(ctx context.Context, c claims, value traits.Mapper) (map[string][]string, error) {
	var extra map[string][]string
	set := func(key string, values ...string) {
		if extra == nil {
			extra = map[string][]string{}
		}
		extra[key] = values
	}
	var id string
	if c.read("jti", &id) == nil && id != "" {
		set(user.CredentialIDKey, "JTI="+id)
	}
	if o.rules.Extra == nil {
		return extra, nil
	}
	got, err := o.rules.Extra.EvalClaimMappings(ctx, value)
	if err != nil {
		return nil, err
	}
	for _, g := range got {
		mapping, ok := g.ExpressionAccessor.(*authenticationcel.ExtraMappingExpression)
		if !ok {
			return nil, fmt.Errorf("oidc: %T is no mapping of extra", g.ExpressionAccessor)
		}
		values, err := stringList(g.EvalResult)
		if err != nil {
			return nil, fmt.Errorf("oidc: error evaluating extra claim expression: %s: %w", mapping.Expression, err)
		}
		if len(values) > 0 {
			set(mapping.Key, values...)
		}
	}
	return extra, nil
}

// oneString evaluates the expression for what, which must be a string.
func oneString(ctx context.Context, m authenticationcel.ClaimsMapper, value traits.Mapper, what string) (string, error) {
	got, err := m.EvalClaimMapping(ctx, value)
	if err == nil {
		if s, ok := got.EvalResult.(types.String); ok {
			return string(s), nil
		}
		err = fmt.Errorf("%s claim expression must return a string", what)
	}
	return "", fmt.Errorf("oidc: error evaluating %s claim expression: %w", what, err)
}

// allTrue says which rule was not kept.
func allTrue(results []authenticationcel.EvaluationResult) error {
	for _, r := range results {
		ok, is := r.EvalResult.(types.Bool)
		switch {
		case !is:
			return errors.New("validation expression must return a boolean")
		case !bool(ok):
			return fmt.Errorf("validation expression '%s' failed: %s", r.ExpressionAccessor.GetExpression(), message(r.ExpressionAccessor))
		}
	}
	return nil
}

func message(e authenticationcel.ExpressionAccessor) string {
	switch e := e.(type) {
	case *authenticationcel.ClaimValidationCondition:
		return e.Message
	case *authenticationcel.UserValidationCondition:
		return e.Message
	}
	return ""
}

var errStrings = errors.New("expression must return a string or a list of strings")

// stringList is a string, or a list of them, without the empty ones; null is
// none. A list that a function of strings made is none that upstream takes.
func stringList(v ref.Val) (list []string, err error) {
	add := func(v any) bool {
		s, ok := v.(string)
		if ok && s != "" {
			list = append(list, s)
		}
		return ok
	}
	switch of := v.Value().(type) {
	case string:
		add(of)
		return list, nil
	case []any:
		for _, one := range of {
			if !add(one) {
				return nil, errStrings
			}
		}
		return list, nil
	case []ref.Val:
		for _, one := range of {
			if !add(one.Value()) {
				return nil, errStrings
			}
		}
		return list, nil
	}
	if v.Type() == types.NullType {
		return nil, nil
	}
	return nil, errStrings
}
