package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/authn"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/request"
)

// chain is what every request passes, outermost first: parse, limit,
// authenticate, impersonate, authorise.
func (s *Server) chain(next http.Handler) http.Handler {
	reads := make(chan struct{}, s.cfg.MaxReads)
	writes := make(chan struct{}, s.cfg.MaxWrites)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, err := request.ParseInfo(r)
		if err != nil {
			endpoints.WriteStatus(w, r, apierrors.NewBadRequest(err.Error()))
			return
		}
		ctx := request.WithWarnings(request.WithInfo(r.Context(), info), w.Header())
		w.Header().Set("Cache-Control", "no-cache, private")
		if !info.IsLongRunning() {
			lane := writes
			switch info.Verb {
			case "get", "list", "watch", "head":
				lane = reads
			}
			// Health is asked for when the server is busy; it costs nothing.
			if info.IsResource || !isHealth(info.Path) {
				select {
				case lane <- struct{}{}:
					defer func() { <-lane }()
				default:
					tooMany(w, r)
					return
				}
			}
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, s.cfg.RequestTimeout)
			defer cancel()
		}
		r = r.WithContext(ctx)
		who, err := s.authn.Authenticate(r)
		if err != nil {
			if !errors.Is(err, authn.ErrUnauthorized) {
				err = apierrors.NewInternalError(err)
			} else {
				err = apierrors.NewUnauthorized("Unauthorized")
			}
			endpoints.WriteStatus(w, r, err)
			return
		}
		if who, err = s.impersonate(r, who); err != nil {
			endpoints.WriteStatus(w, r, err)
			return
		}
		ctx = request.WithUser(ctx, who)
		r = r.WithContext(ctx)
		attrs := attributes(who, info)
		if ok, reason := s.authz.Authorize(ctx, attrs); !ok && !(isHealth(info.Path) && !info.IsResource) {
			endpoints.WriteStatus(w, r, denied(attrs, reason))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func tooMany(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "1")
	endpoints.WriteStatus(w, r, apierrors.NewTooManyRequests("too many requests, please try again later", 1))
}

func isHealth(path string) bool {
	for _, p := range []string{"/livez", "/readyz", "/healthz"} {
		if path == p || strings.HasPrefix(path, p+"/") {
			return true
		}
	}
	return false
}

func attributes(who user.Info, info *request.Info) *authz.Attributes {
	return &authz.Attributes{
		User: who, Verb: info.Verb, Namespace: info.Namespace, Group: info.Group, Version: info.Version,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name,
		IsResource: info.IsResource, Path: info.Path, FieldSelector: info.FieldSelector,
	}
}

// denied is the 403 in upstream's words.
func denied(a *authz.Attributes, reason string) error {
	who := fmt.Sprintf("User %q", a.User.GetName())
	if !a.IsResource {
		message := fmt.Sprintf("forbidden: %s cannot %s path %q", who, a.Verb, a.Path)
		if reason != "" {
			message += ": " + reason
		}
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Message: message, Details: &metav1.StatusDetails{},
		}}
	}
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	message := fmt.Sprintf("%s cannot %s resource %q in API group %q", who, a.Verb, resource, a.Group)
	if a.Namespace != "" {
		message += fmt.Sprintf(" in the namespace %q", a.Namespace)
	} else {
		message += " at the cluster scope"
	}
	if reason != "" {
		message += ": " + reason
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: a.Group, Resource: a.Resource}, a.Name, errors.New(message))
}

// impersonate lets a user act as another, when he may.
func (s *Server) impersonate(r *http.Request, who user.Info) (user.Info, error) {
	h := r.Header
	name := h.Get(authenticationv1.ImpersonateUserHeader)
	groups := h.Values(authenticationv1.ImpersonateGroupHeader)
	uid := h.Get(authenticationv1.ImpersonateUIDHeader)
	extra := map[string][]string{}
	for key, values := range h {
		if k, ok := strings.CutPrefix(strings.ToLower(key), strings.ToLower(authenticationv1.ImpersonateUserExtraHeaderPrefix)); ok {
			extra[unescape(k)] = values
		}
	}
	if name == "" {
		if len(groups) > 0 || uid != "" || len(extra) > 0 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("requested %v without impersonating a user", headersOf(groups, uid, extra)))
		}
		return who, nil
	}
	may := func(group, resource, sub, namespace, name string) error {
		a := &authz.Attributes{
			User: who, Verb: "impersonate", Group: group, Version: "v1", Resource: resource, Subresource: sub,
			Namespace: namespace, Name: name, IsResource: true,
		}
		if ok, reason := s.authz.Authorize(r.Context(), a); !ok {
			return denied(a, reason)
		}
		return nil
	}
	target := &user.DefaultInfo{Name: name, Groups: groups, UID: uid}
	if ns, sa, err := serviceaccount.SplitUsername(name); err == nil {
		if err := may("", "serviceaccounts", "", ns, sa); err != nil {
			return nil, err
		}
		if len(groups) == 0 {
			target.Groups = serviceaccount.MakeGroupNames(ns)
		}
	} else if err := may("", "users", "", "", name); err != nil {
		return nil, err
	}
	for _, g := range groups {
		if err := may("", "groups", "", "", g); err != nil {
			return nil, err
		}
	}
	if uid != "" {
		if err := may("authentication.k8s.io", "uids", "", "", uid); err != nil {
			return nil, err
		}
	}
	for k, values := range extra {
		for _, v := range values {
			if err := may("authentication.k8s.io", "userextras", k, "", v); err != nil {
				return nil, err
			}
		}
		target.Extra = extra
	}
	for _, key := range []string{authenticationv1.ImpersonateUserHeader, authenticationv1.ImpersonateGroupHeader, authenticationv1.ImpersonateUIDHeader} {
		h.Del(key)
	}
	for key := range h {
		if strings.HasPrefix(strings.ToLower(key), strings.ToLower(authenticationv1.ImpersonateUserExtraHeaderPrefix)) {
			h.Del(key)
		}
	}
	if name == user.Anonymous {
		target.Groups = append(target.Groups[:len(target.Groups):len(target.Groups)], user.AllUnauthenticated)
		return target, nil
	}
	for _, g := range target.Groups {
		if g == user.AllAuthenticated || g == user.AllUnauthenticated {
			return target, nil
		}
	}
	target.Groups = append(target.Groups[:len(target.Groups):len(target.Groups)], user.AllAuthenticated)
	return target, nil
}

func headersOf(groups []string, uid string, extra map[string][]string) string {
	return fmt.Sprintf("groups %q, uid %q, extra %v", groups, uid, extra)
}

// unescape undoes the percent-encoding of extra keys.
func unescape(s string) string {
	if u, err := pathUnescape(s); err == nil {
		return u
	}
	return s
}
