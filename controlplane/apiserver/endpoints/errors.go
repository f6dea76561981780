package endpoints

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/watchcache"
)

// lockMessage is what a conflict says.
const lockMessage = "the object has been modified; please apply your changes to the latest version and try again"

// statusError is a Status with a reason the official errors have no maker for.
func statusError(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// fromCache turns the cache's errors into Status.
func (e *entry) fromCache(err error, name string) error {
	var tooOld *watchcache.TooOldError
	var tooNew *watchcache.TooNewError
	var invalid *watchcache.InvalidError
	var expired *watchcache.ContinueExpiredError
	var partial *watchcache.PartialError
	gr := e.gvr.GroupResource()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, watchcache.ErrNotFound):
		return apierrors.NewNotFound(gr, name)
	case errors.Is(err, watchcache.ErrExists):
		return apierrors.NewAlreadyExists(gr, name)
	case errors.Is(err, watchcache.ErrConflict):
		return apierrors.NewConflict(gr, name, errors.New(lockMessage))
	case errors.As(err, &expired):
		e := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.")
		e.ErrStatus.Continue = expired.Token
		return e
	case errors.Is(err, watchcache.ErrNotReady):
		return statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, err.Error())
	case errors.As(err, &partial) && !partial.Sealed():
		return statusError(http.StatusInternalServerError, "", partial.Error())
	case errors.As(err, &partial):
		return apierrors.NewInternalError(partial)
	case errors.Is(err, storage.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	case errors.As(err, &tooOld):
		return apierrors.NewResourceExpired(err.Error())
	case errors.As(err, &tooNew):
		t := apierrors.NewTimeoutError(err.Error(), 1)
		t.ErrStatus.Details.Causes = []metav1.StatusCause{{
			Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
		return t
	case errors.As(err, &invalid):
		text := err.Error()
		switch {
		case strings.HasPrefix(text, "continue key is not valid"):
			text = "invalid continue token: " + text
		case strings.HasPrefix(text, "Invalid value: "):
			text = "invalid resource version: resourceVersion: " + text
		}
		return apierrors.NewBadRequest(text)
	}
	return err
}

// statusOf is err as the client sees it.
func statusOf(ctx context.Context, err error) *metav1.Status {
	var api apierrors.APIStatus
	var unreadable *watchcache.UnreadableError
	switch {
	case errors.As(err, &api):
		status := api.Status()
		if status.Status == "" {
			status.Status = metav1.StatusFailure
		}
		if status.Code == 0 {
			status.Code = http.StatusInternalServerError
		}
		status.Kind, status.APIVersion = "Status", "v1"
		return &status
	case errors.As(err, &unreadable) && unreadable.Sealed:
		return statusOf(ctx, apierrors.NewInternalError(err))
	case errors.Is(err, context.DeadlineExceeded):
		return statusOf(ctx, apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0))
	}
	if ctx.Err() == nil {
		slog.WarnContext(ctx, "request ends with an error that is no Status", "err", err)
	}
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: http.StatusInternalServerError,
		Message: err.Error(),
	}
}

// WriteStatus answers with err as a Status, in the format the client accepts.
func WriteStatus(w http.ResponseWriter, r *http.Request, err error) { writeStatus(w, r, err) }

func writeStatus(w http.ResponseWriter, r *http.Request, err error) {
	if storage.Stopped(err) && r.Method == http.MethodGet {
		// Another API server answers a client that asks again. A write may have been done.
		ending := apierrors.NewServiceUnavailable("this API server ends")
		ending.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
		err = ending
	}
	status := statusOf(r.Context(), err)
	out, nerr := negotiate(r, false)
	if nerr != nil || out.as != "" {
		pretty := out.pretty
		out = output{format: formatJSON, pretty: pretty}
	}
	if s := status.Details; s != nil && s.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(s.RetryAfterSeconds)))
	}
	request.AuditFrom(r.Context()).SetResponse(status)
	writeObject(w, r, out, int(status.Code), status, statusKind)
}

var statusKind = schema.GroupVersionKind{Version: "v1", Kind: "Status"}

// notAcceptable and unsupportedMedia are negotiation's refusals.
func notAcceptable() error {
	return statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf")
}

func unsupportedMedia(accepted string) error {
	return statusError(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: "+accepted)
}
