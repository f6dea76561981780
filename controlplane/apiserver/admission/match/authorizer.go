package match

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"knarr/controlplane/apiserver/authz"
)

// Authorizer answers what expressions ask of upstream's authoriser.
func Authorizer(z authz.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		return z.Authorize(ctx, &authz.Attributes{
			User: a.GetUser(), Verb: a.GetVerb(), Namespace: a.GetNamespace(), Group: a.GetAPIGroup(), Version: a.GetAPIVersion(),
			Resource: a.GetResource(), Subresource: a.GetSubresource(), Name: a.GetName(), IsResource: a.IsResourceRequest(), Path: a.GetPath(),
		})
	})
}
