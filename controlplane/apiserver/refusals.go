package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/endpoints"
)

// recoverPanic answers 500 when a handler panics: one request must not end the
// server, nor go without an answer.
func recoverPanic(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler {
		panic(p)
	}
	slog.ErrorContext(r.Context(), "panic serving a request", "method", r.Method, "path", r.URL.Path,
		"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	endpoints.WriteStatus(w, r, apierrors.NewInternalError(fmt.Errorf("panic serving the request: %s %s", r.Method, r.URL.Path)))
}

func tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
}

// timedOut is the 504 of a request whose time is over.
func timedOut(w http.ResponseWriter, r *http.Request) {
	endpoints.WriteStatus(w, r, apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0))
}

// neutral takes from a text what a browser could take for HTML.
var neutral = strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;")

// undecided is the 500, in upstream's words, of a request that could not be
// authorised.
func undecided(w http.ResponseWriter, r *http.Request, err error) {
	http.Error(w, neutral.Replace(fmt.Sprintf("Internal Server Error: %q: %v", r.RequestURI, err)), http.StatusInternalServerError)
}

// denied is the 403 in upstream's words.
func denied(a *authz.Attributes, reason string) error {
	if a.IsResource {
		return apierrors.NewForbidden(schema.GroupResource{Group: a.Group, Resource: a.Resource}, a.Name, errors.New(a.Denied(reason)))
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: a.Denied(reason), Details: &metav1.StatusDetails{},
	}}
}
