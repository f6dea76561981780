package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	reviewv1 "k8s.io/api/admission/v1"
	reviewv1beta1 "k8s.io/api/admission/v1beta1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	upstream "k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"

	"knarr/controlplane/apiserver/admission/match"
)

// A callError is a webhook that could not be asked, which failurePolicy
// decides on; a refusal is a Status.
type callError struct {
	name   string
	reason error
}

func (e *callError) Error() string {
	return fmt.Sprintf("failed calling webhook %q: %v", e.name, e.reason)
}

func (e *callError) Unwrap() error { return e.reason }

// ask sends the write to the hook. The answer allows it; all else is an error.
func (h *hook) ask(ctx context.Context, r *match.Request, t match.Target, view *upstream.VersionedAttributes, mutating bool) (*reviewv1.AdmissionResponse, error) {
	if r.DryRun {
		if h.SideEffects == nil {
			return nil, &callError{h.Name, errors.New("Webhook SideEffects is nil")}
		}
		if *h.SideEffects != admissionv1.SideEffectClassNone && *h.SideEffects != admissionv1.SideEffectClassNoneOnDryRun {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("admission webhook %q does not support dry run", h.Name))
		}
	}
	answer, err := h.review(ctx, t, view, mutating)
	if err != nil {
		return nil, &callError{h.Name, err}
	}
	for k, v := range answer.AuditAnnotations {
		annotate(ctx, r, h.Name+"/"+k, v)
	}
	for _, text := range answer.Warnings {
		r.Warn(ctx, text)
	}
	if !answer.Allowed {
		return nil, refusal(h.Name, answer.Result)
	}
	return answer, nil
}

// annotate adds what a webhook says to the audit event, if it has a proper name.
func annotate(ctx context.Context, r *match.Request, key, value string) {
	if strings.Contains(key, "/") && len(validation.IsQualifiedName(key)) == 0 {
		r.Annotate(ctx, key, value)
	}
}

// refusal is a webhook's no.
func refusal(name string, result *metav1.Status) error {
	status := metav1.Status{}
	if result != nil {
		status = *result
	}
	status.Code = max(status.Code, http.StatusBadRequest)
	if status.Status == "" || status.Status == metav1.StatusSuccess {
		status.Status = metav1.StatusFailure
	}
	text := fmt.Sprintf("admission webhook %q denied the request", name)
	switch {
	case status.Message != "":
		text += ": " + status.Message
	case status.Reason != "":
		text += ": " + string(status.Reason)
	default:
		text += " without explanation"
	}
	status.Message = text
	return &apierrors.StatusError{ErrStatus: status}
}

// review is the exchange with the webhook.
func (h *hook) review(ctx context.Context, t match.Target, view *upstream.VersionedAttributes, mutating bool) (*reviewv1.AdmissionResponse, error) {
	version := ""
	for _, v := range h.AdmissionReviewVersions {
		if v == "v1" || v == "v1beta1" {
			version = v
			break
		}
	}
	if version == "" {
		return nil, fmt.Errorf("could not create admission objects: %w", errors.New("webhook does not accept known AdmissionReview versions (v1, v1beta1)"))
	}
	if h.client.err != nil {
		return nil, fmt.Errorf("could not get REST client: %w", h.client.err)
	}
	uid := types.UID(uuid.NewUUID())
	body, answer, err := question(version, uid, t, view)
	if err != nil {
		return nil, fmt.Errorf("could not create admission objects: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(h.seconds())*time.Second)
	defer cancel()
	post := h.client.rest.Post().Body(body)
	if deadline, ok := ctx.Deadline(); ok {
		if left := time.Until(deadline); left > 0 { // whole seconds, rounded up
			post.Timeout((left + time.Second - 1).Truncate(time.Second))
		}
	}
	if err := post.Do(ctx).Into(answer); err != nil {
		return nil, fmt.Errorf("failed to call webhook: %w", err)
	}
	response, err := verify(uid, mutating, answer)
	if err != nil {
		return nil, fmt.Errorf("received invalid webhook response: %w", err)
	}
	return response, nil
}

// question is the AdmissionReview sent, and an empty one for the answer.
func question(version string, uid types.UID, t match.Target, view *upstream.VersionedAttributes) (body, answer runtime.Object, err error) {
	q := plugincel.CreateAdmissionRequest(view.Attributes, metav1.GroupVersionResource(t.Resource), metav1.GroupVersionKind(t.Kind))
	q.UID = uid
	q.Object.Object, q.OldObject.Object = view.VersionedObject, view.VersionedOldObject
	if version == "v1" {
		return &reviewv1.AdmissionReview{Request: q}, &reviewv1.AdmissionReview{}, nil
	}
	// The older version has the same form.
	data, err := json.Marshal(q)
	if err != nil {
		return nil, nil, err
	}
	old := &reviewv1beta1.AdmissionReview{Request: &reviewv1beta1.AdmissionRequest{}}
	return old, &reviewv1beta1.AdmissionReview{}, json.Unmarshal(data, old.Request)
}

// verify holds an answer to the rules of its version.
func verify(uid types.UID, mutating bool, answer runtime.Object) (*reviewv1.AdmissionResponse, error) {
	if old, ok := answer.(*reviewv1beta1.AdmissionReview); ok {
		if old.Response == nil {
			return nil, errors.New("webhook response was absent")
		}
		r := &reviewv1.AdmissionResponse{AuditAnnotations: old.Response.AuditAnnotations, Allowed: old.Response.Allowed,
			Result: old.Response.Result, Warnings: old.Response.Warnings}
		if mutating && len(old.Response.Patch) > 0 {
			r.Patch, r.PatchType = old.Response.Patch, new(reviewv1.PatchTypeJSONPatch)
		}
		return r, nil
	}
	review := answer.(*reviewv1.AdmissionReview)
	r := review.Response
	want := reviewv1.SchemeGroupVersion.WithKind("AdmissionReview")
	switch {
	case r == nil:
		return nil, errors.New("webhook response was absent")
	case r.UID != uid:
		return nil, fmt.Errorf("expected response.uid=%q, got %q", uid, r.UID)
	case review.GroupVersionKind() != want:
		return nil, fmt.Errorf("expected webhook response of %v, got %v", want, review.GroupVersionKind())
	case !mutating && len(r.Patch) > 0:
		return nil, errors.New("validating webhook may not return response.patch")
	case !mutating && r.PatchType != nil:
		return nil, errors.New("validating webhook may not return response.patchType")
	case len(r.Patch) > 0 && r.PatchType == nil:
		return nil, errors.New("webhook returned response.patch but not response.patchType")
	case len(r.Patch) == 0 && r.PatchType != nil:
		return nil, errors.New("webhook returned response.patchType but not response.patch")
	case r.PatchType != nil && *r.PatchType == "":
		return nil, fmt.Errorf("webhook returned invalid response.patchType of %q", *r.PatchType)
	}
	return r, nil
}
