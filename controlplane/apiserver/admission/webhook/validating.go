package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/apiserver/pkg/admission"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/admission/match"
	"knarr/controlplane/apiserver/metrics"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/run"
)

// Validating asks the webhooks that may only refuse, all at once.
type Validating struct {
	hooks *hooks
	cache *watchcache.Cache
}

// NewValidating makes the plugin; it starts nothing.
func NewValidating(c Config) *Validating {
	return &Validating{cache: c.Cache, hooks: newHooks(c, "validatingwebhookconfigurations", func(r *watchcache.Resource, add func(metav1.Object, []admissionv1.MutatingWebhook)) {
		watchcache.Each(r, "", func(c *admissionv1.ValidatingWebhookConfiguration) bool {
			list := make([]admissionv1.MutatingWebhook, len(c.Webhooks))
			for i, h := range c.Webhooks {
				list[i] = admissionv1.MutatingWebhook{
					Name: h.Name, ClientConfig: h.ClientConfig, Rules: h.Rules, FailurePolicy: h.FailurePolicy, MatchPolicy: h.MatchPolicy,
					NamespaceSelector: h.NamespaceSelector, ObjectSelector: h.ObjectSelector, SideEffects: h.SideEffects,
					TimeoutSeconds: h.TimeoutSeconds, AdmissionReviewVersions: h.AdmissionReviewVersions, MatchConditions: h.MatchConditions,
				}
			}
			add(c, list)
			return true
		})
	})}
}

func (v *Validating) Name() string { return "ValidatingAdmissionWebhook" }

// Close ends connections that are idle.
func (v *Validating) Close() { v.hooks.clients.close() }

// Validate asks every hook that the write concerns; the first in order to
// refuse is the answer.
func (v *Validating) Validate(ctx context.Context, a *admission.Attributes) error {
	all := v.hooks.all()
	if len(all) == 0 || match.Exempt(a) {
		return nil
	}
	type call struct {
		hook   *hook
		target match.Target
		view   *upstream.VersionedAttributes
	}
	r := match.NewRequest(a, v.cache)
	var calls []call
	for _, h := range all {
		t, view, err := v.hooks.concerns(ctx, h, r)
		if err != nil {
			return err
		}
		if view != nil {
			calls = append(calls, call{h, t, view})
		}
	}
	if len(calls) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	errs := make([]error, len(calls))
	asked := time.Now()
	var wg run.Group
	for i, c := range calls {
		wg.Go("validating webhook", func() {
			defer func() {
				if p := recover(); p != nil && !c.hook.ignoresFailures() {
					slog.ErrorContext(ctx, "panic asking a webhook", "webhook", c.hook.Name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
					errs[i] = apierrors.NewInternalError(fmt.Errorf("ValidatingAdmissionWebhook/%v has panicked: %v", c.hook.Name, p))
				}
			}()
			began := time.Now()
			_, err := c.hook.ask(ctx, r, c.target, c.view, false)
			c.hook.count(ctx, c.view, metrics.Validating, began, err)
			errs[i] = c.hook.judge(ctx, r, err, fmt.Sprintf("failed-open.validating.webhook.admission.k8s.io/round_0_index_%d", i))
		})
	}
	wg.Wait()
	request.InfoFrom(ctx).Wait(time.Since(asked))
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
