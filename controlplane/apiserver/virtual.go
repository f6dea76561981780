package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/authn"
	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
)

// virtual answers the kinds that are questions.
func (s *Server) virtual() map[string]endpoints.Virtual {
	return map[string]endpoints.Virtual{
		"tokenreviews.authentication.k8s.io":             s.tokenReview,
		"selfsubjectreviews.authentication.k8s.io":       s.selfSubjectReview,
		"subjectaccessreviews.authorization.k8s.io":      s.subjectAccessReview,
		"localsubjectaccessreviews.authorization.k8s.io": s.localSubjectAccessReview,
		"selfsubjectaccessreviews.authorization.k8s.io":  s.selfSubjectAccessReview,
		"selfsubjectrulesreviews.authorization.k8s.io":   s.selfSubjectRulesReview,
		"serviceaccounts/token":                          s.tokenRequest,
	}
}

func (s *Server) tokenReview(ctx context.Context, obj registry.Object, _ *metav1.CreateOptions) (registry.Object, error) {
	review := obj.(*authenticationv1.TokenReview)
	if review.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	wanted := authenticator.Audiences(review.Spec.Audiences)
	if len(wanted) == 0 {
		wanted = s.tokens.Audiences()
	}
	review.Status.Authenticated = false // what else the question says of it, the answer repeats
	resp, ok, err := s.authn.AuthenticateToken(authenticator.WithAudiences(ctx, wanted), review.Spec.Token)
	if err != nil {
		review.Status.Error = authn.ReviewError(err)
	}
	if !ok {
		return review, nil
	}
	auds := resp.Audiences
	if len(auds) == 0 { // tokens without an audience are the API server's
		if auds = authenticator.Audiences(s.tokens.Audiences()).Intersect(wanted); len(auds) == 0 {
			return review, nil
		}
	}
	review.Status.Authenticated = true
	review.Status.User = userInfo(authn.Authenticated(resp.User))
	review.Status.Audiences = auds
	return review, nil
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for k, v := range u.GetExtra() {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[k] = v
	}
	return info
}

func (s *Server) selfSubjectReview(ctx context.Context, _ registry.Object, _ *metav1.CreateOptions) (registry.Object, error) {
	review := &authenticationv1.SelfSubjectReview{}
	review.CreationTimestamp = metav1.Now().Rfc3339Copy()
	review.Status.UserInfo = userInfo(request.UserFrom(ctx))
	return review, nil
}

// tokenRequest issues a token of the service account in the URL.
func (s *Server) tokenRequest(ctx context.Context, obj registry.Object, opts *metav1.CreateOptions) (registry.Object, error) {
	req := obj.(*authenticationv1.TokenRequest)
	info := request.InfoFrom(ctx)
	gr := corev1.Resource("serviceaccounts")
	sa, err := read[*corev1.ServiceAccount](ctx, s.cache.Resource(corev1.SchemeGroupVersion.WithResource("serviceaccounts")), info.Namespace+"/"+info.Name)
	switch {
	case errors.Is(err, watchcache.ErrNotFound):
		return nil, apierrors.NewNotFound(gr, info.Name)
	case err != nil:
		return nil, err
	}
	kind := authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")
	if req.Name != "" && req.Name != sa.Name {
		return nil, apierrors.NewInvalid(kind.GroupKind(), sa.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "name"), req.Name, "must match the service account name if specified")})
	}
	if req.UID != "" && req.UID != sa.UID {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, sa.Name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID, sa.UID))
	}
	if errs := registry.ValidateTokenRequest(req); len(errs) > 0 {
		return nil, apierrors.NewInvalid(kind.GroupKind(), "", errs)
	}
	seconds := *req.Spec.ExpirationSeconds
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = s.tokens.Audiences()
	}
	bound, node, err := s.boundObject(ctx, sa, req.Spec.BoundObjectRef)
	if err != nil {
		return nil, err
	}
	if most := s.tokens.Shortened(seconds); most < seconds {
		request.Warn(ctx, fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", seconds, most))
		seconds, *req.Spec.ExpirationSeconds = most, most
	}
	token, expires, err := s.tokens.Issue(sa, req.Spec.Audiences, seconds, bound, node)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	req.Name, req.Namespace, req.UID = sa.Name, sa.Namespace, sa.UID
	req.CreationTimestamp = metav1.Now()
	req.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(expires)}
	return req, nil
}

// boundObject finds what a token shall be bound to, and a pod's node.
func (s *Server) boundObject(ctx context.Context, sa *corev1.ServiceAccount, ref *authenticationv1.BoundObjectReference) (bound registry.Object, node *corev1.Node, err error) {
	if ref == nil {
		return nil, nil, nil
	}
	core := func(resource string) *watchcache.Resource {
		return s.cache.Resource(corev1.SchemeGroupVersion.WithResource(resource))
	}
	key := sa.Namespace + "/" + ref.Name
	resource := strings.ToLower(ref.Kind) + "s"
	switch {
	case ref.APIVersion != "v1" || ref.Kind != "Pod" && ref.Kind != "Secret" && ref.Kind != "Node":
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)))
	case ref.Kind == "Node":
		key = ref.Name
	}
	bound, err = read[registry.Object](ctx, core(resource), key)
	switch {
	case errors.Is(err, watchcache.ErrNotFound):
		return nil, nil, apierrors.NewNotFound(corev1.Resource(resource), ref.Name)
	case err != nil:
		return nil, nil, err
	}
	if pod, ok := bound.(*corev1.Pod); ok {
		if pod.Spec.ServiceAccountName != sa.Name {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", sa.Name))
		}
		if pod.Spec.NodeName != "" {
			var ok bool
			if node, ok = watchcache.Read[*corev1.Node](core("nodes"), pod.Spec.NodeName); !ok { // its name is told all the same
				node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}
			}
		}
	}
	if ref.UID != "" && ref.UID != bound.GetUID() {
		return nil, nil, apierrors.NewConflict(schema.GroupResource{Resource: ref.Kind}, ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return bound, node, nil
}

// read is the object under key, consistently when the cache has none.
func read[T registry.Object](ctx context.Context, r *watchcache.Resource, key string) (obj T, err error) {
	if obj, ok := watchcache.Read[T](r, key); ok {
		return obj, nil
	}
	rec, err := r.Get(ctx, key, "")
	if err != nil {
		return obj, err
	}
	o, err := rec.Object()
	if err != nil {
		return obj, err
	}
	return o.(T), nil
}
