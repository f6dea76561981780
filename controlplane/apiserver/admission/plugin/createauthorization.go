package plugin

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/authz"
)

// createAuthorization asks for the right to create when an update or an apply
// turns out to create: the request itself was authorised as what its method
// says.
type createAuthorization struct{ authorizer authz.Authorizer }

func (*createAuthorization) Name() string { return "CreateAuthorization" }

func (c *createAuthorization) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Operation != admission.Create || a.User == nil || a.Verb != "update" && a.Verb != "patch" {
		return nil
	}
	ask := &authz.Attributes{
		User: a.User, Verb: "create", Namespace: a.Namespace, Group: a.Resource.Group, Version: a.Resource.Version,
		Resource: a.Resource.Resource, Subresource: a.Subresource, Name: a.Name, IsResource: true,
	}
	if ok, reason := authz.Allows(ctx, c.authorizer, ask); !ok {
		return apierrors.NewForbidden(a.Resource.GroupResource(), a.Name, errors.New(ask.Denied(reason)))
	}
	return nil
}
