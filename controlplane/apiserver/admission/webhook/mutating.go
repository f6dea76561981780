package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	reviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes/scheme"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/admission/match"
	"knarr/controlplane/apiserver/metrics"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
)

// Mutating asks the webhooks that may change objects, one after the other.
type Mutating struct {
	hooks *hooks
	cache *watchcache.Cache
}

// NewMutating makes the plugin; it starts nothing.
func NewMutating(c Config) *Mutating {
	return &Mutating{cache: c.Cache, hooks: newHooks(c, "mutatingwebhookconfigurations", func(r *watchcache.Resource, add func(metav1.Object, []admissionv1.MutatingWebhook)) {
		watchcache.Each(r, "", func(c *admissionv1.MutatingWebhookConfiguration) bool {
			add(c, c.Webhooks)
			return true
		})
	})}
}

const mutatingName = "MutatingAdmissionWebhook"

func (m *Mutating) Name() string { return mutatingName }

// Close ends connections that are idle.
func (m *Mutating) Close() { m.hooks.clients.close() }

// Admit asks each hook that the write concerns.
func (m *Mutating) Admit(ctx context.Context, a *admission.Attributes) error {
	all := m.hooks.all()
	if len(all) == 0 || match.Exempt(a) {
		return nil
	}
	var state *match.Memory
	if a.Round > 0 {
		state = match.MemoryOf(a, mutatingName)
	}
	r := match.NewRequest(a, m.cache)
	for i, h := range all {
		t, view, err := m.hooks.concerns(ctx, h, r)
		if err != nil {
			return err
		}
		if view == nil {
			continue
		}
		if state == nil {
			state = match.MemoryOf(a, mutatingName)
		}
		if state.Passes(a, h.key) {
			continue
		}
		began := time.Now()
		changed, err := h.mutate(ctx, r, t, view, i)
		h.count(ctx, view, metrics.Admit, began, err)
		if changed {
			state.Changed(a)
		}
		if h.ReinvocationPolicy != nil && *h.ReinvocationPolicy == admissionv1.IfNeededReinvocationPolicy {
			state.Invoked(h.key)
		}
		if err = h.judge(ctx, r, err, fmt.Sprintf("failed-open.mutation.webhook.admission.k8s.io/round_%d_index_%d", a.Round, i)); err != nil {
			return err
		}
	}
	if state != nil {
		state.End(a)
	}
	return nil
}

// judge applies failurePolicy to what came of asking.
func (h *hook) judge(ctx context.Context, r *match.Request, err error, failedOpen string) error {
	var call *callError
	if !errors.As(err, &call) {
		return err
	}
	if !h.ignoresFailures() {
		return apierrors.NewInternalError(call)
	}
	if !errors.Is(err, context.Canceled) {
		slog.WarnContext(ctx, "webhook failed, which its policy ignores", "webhook", h.Name, "err", err)
		r.Annotate(ctx, failedOpen, h.Name)
	}
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	return nil
}

// mutate asks the hook and applies its patch.
func (h *hook) mutate(ctx context.Context, r *match.Request, t match.Target, view *upstream.VersionedAttributes, index int) (changed bool, err error) {
	at := fmt.Sprintf("webhook.admission.k8s.io/round_%d_index_%d", r.Round, index)
	defer func() {
		r.Annotate(ctx, "mutation."+at, asJSON(struct {
			Configuration string `json:"configuration"`
			Webhook       string `json:"webhook"`
			Mutated       bool   `json:"mutated"`
		}{h.configuration, h.Name, changed}))
	}()
	answer, err := h.ask(ctx, r, t, view, true)
	if err != nil || len(answer.Patch) == 0 {
		return false, err
	}
	patch, err := jsonpatch.DecodePatch(answer.Patch)
	if err != nil {
		return false, &callError{h.Name, fmt.Errorf("received undecodable patch in webhook response: %w", err)}
	}
	if len(patch) == 0 {
		return false, nil
	}
	if view.VersionedObject == nil {
		return false, apierrors.NewInternalError(fmt.Errorf("admission webhook %q attempted to modify the object, which is not supported for this operation", h.Name))
	}
	if *answer.PatchType != reviewv1.PatchTypeJSONPatch {
		return false, &callError{h.Name, fmt.Errorf("unsupported patch type %q", *answer.PatchType)}
	}
	obj, err := apply(patch, r, t, view.VersionedObject)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	if a := request.AuditFrom(ctx); a != nil && a.KeepRequest {
		r.Annotate(ctx, "patch."+at, asJSON(struct {
			Configuration string          `json:"configuration"`
			Webhook       string          `json:"webhook"`
			Patch         jsonpatch.Patch `json:"patch,omitempty"`
			PatchType     string          `json:"patchType,omitempty"`
		}{h.configuration, h.Name, patch, string(reviewv1.PatchTypeJSONPatch)}))
	}
	changed = !apiequality.Semantic.DeepEqual(view.VersionedObject, obj)
	r.Served.Default(r.Resource, t.Kind, obj)
	return changed, r.Accept(t, obj)
}

func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(data)
}

// apply is obj with the patch.
func apply(patch jsonpatch.Patch, r *match.Request, t match.Target, obj runtime.Object) (runtime.Object, error) {
	before, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	after, err := patch.Apply(before)
	if err != nil {
		return nil, err
	}
	if _, ok := obj.(*unstructured.Unstructured); ok {
		out := &unstructured.Unstructured{}
		return out, out.UnmarshalJSON(after)
	}
	out, err := r.Served.New(r.Resource, t.Kind)
	if err != nil {
		return nil, err
	}
	codec := serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, serializer.SerializerOptions{})
	out, _, err = codec.Decode(after, nil, out)
	return out, err
}
