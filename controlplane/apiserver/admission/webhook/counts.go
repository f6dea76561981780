package webhook

import (
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	upstream "k8s.io/apiserver/pkg/admission"

	"knarr/controlplane/apiserver/metrics"
	"knarr/controlplane/apiserver/request"
)

// count records the outcome of a webhook's call in the metrics.
func (h *hook) count(ctx context.Context, view *upstream.VersionedAttributes, step string, began time.Time, err error) {
	took := time.Since(began)
	if step == metrics.Admit { // validating ones are asked at the same time
		request.InfoFrom(ctx).Wait(took)
	}
	if h.counts == nil {
		return
	}
	operation := string(view.GetOperation())
	code, why, rejected := outcome(err, h.ignoresFailures())
	if rejected && !errors.Is(err, context.Canceled) {
		h.counts.ObserveRejection(h.Name, step, operation, why, code)
	}
	if err != nil && !rejected && !errors.Is(err, context.Canceled) {
		h.counts.ObserveFailOpen(h.Name, step)
	}
	h.counts.Webhook(h.Name, step, operation, rejected, code, took)
}

// outcome is the status code of a webhook's answer, why it refuses, and
// whether it does.
func outcome(err error, ignored bool) (code int, why string, rejected bool) {
	var call *callError
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return http.StatusOK, metrics.NoFault, false
	case errors.As(err, &call):
		if errors.As(call.reason, &status) {
			return int(status.Status().Code), metrics.CallFailed, !ignored
		}
		return http.StatusServiceUnavailable, metrics.CallFailed, !ignored
	case errors.As(err, &status) && status.Status().Reason != "InternalError":
		return int(status.Status().Code), metrics.NoFault, true
	}
	return 0, metrics.OwnFault, true
}
