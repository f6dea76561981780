package registry

import (
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/registry/definition"
)

// reviewVersions are the versions of AdmissionReview that a webhook may name.
var reviewVersions = []string{"v1", "v1beta1"}

var (
	sideEffects = []admissionv1.SideEffectClass{admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun,
		admissionv1.SideEffectClassSome, admissionv1.SideEffectClassUnknown}
	noSideEffects = sideEffects[:2]
)

// asMutating is a validating webhook with the fields that both kinds share.
func asMutating(list []admissionv1.ValidatingWebhook) []admissionv1.MutatingWebhook {
	out := make([]admissionv1.MutatingWebhook, len(list))
	for i, h := range list {
		out[i] = admissionv1.MutatingWebhook{
			Name: h.Name, ClientConfig: h.ClientConfig, Rules: h.Rules, FailurePolicy: h.FailurePolicy, MatchPolicy: h.MatchPolicy,
			NamespaceSelector: h.NamespaceSelector, ObjectSelector: h.ObjectSelector, SideEffects: h.SideEffects,
			TimeoutSeconds: h.TimeoutSeconds, AdmissionReviewVersions: h.AdmissionReviewVersions, MatchConditions: h.MatchConditions,
		}
	}
	return out
}

// webhookRules are those that an update may break when the object did before.
type webhookRules struct {
	conditions, noSideEffects, knownVersion, uniqueNames, strictLabels bool
	stored                                                             stored
}

func webhookRulesFor(hooks, old []admissionv1.MutatingWebhook, update bool) webhookRules {
	r := webhookRules{true, true, true, true, true, nil}
	if !update {
		return r
	}
	r.conditions = len(hooks) != len(old)
	var conditions []admissionv1.MatchCondition
	names := map[string]bool{}
	for i, h := range old {
		r.conditions = r.conditions || !same(hooks[i].MatchConditions, h.MatchConditions)
		conditions = append(conditions, h.MatchConditions...)
		r.noSideEffects = r.noSideEffects && h.SideEffects != nil && slices.Contains(noSideEffects, *h.SideEffects)
		r.knownVersion = r.knownVersion && (len(h.AdmissionReviewVersions) == 0 || knowsReview(h.AdmissionReviewVersions))
		r.uniqueNames = r.uniqueNames && !names[h.Name]
		names[h.Name] = true
		for _, s := range []*metav1.LabelSelector{h.NamespaceSelector, h.ObjectSelector} {
			if s != nil && len(metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, nil)) > 0 {
				r.strictLabels = false
			}
		}
	}
	r.stored = conditionsStored(conditions)
	return r
}

func knowsReview(versions []string) bool {
	return slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(reviewVersions, v) })
}

func validateWebhooks(hooks, old []admissionv1.MutatingWebhook, update bool) field.ErrorList {
	f := &faults{}
	rules := webhookRulesFor(hooks, old, update)
	for i := range hooks {
		h, at := &hooks[i], field.NewPath("webhooks").Index(i)
		f.add(validateWebhook(h, rules, at))
		f.add(validateReviewVersions(h.AdmissionReviewVersions, rules.knownVersion, at.Child("admissionReviewVersions")))
		if rules.uniqueNames && h.Name != "" && slices.ContainsFunc(hooks[:i], func(o admissionv1.MutatingWebhook) bool { return o.Name == h.Name }) {
			f.duplicate(at.Child("name"), h.Name)
		}
	}
	return f.list
}

func validateReviewVersions(versions []string, known bool, at *field.Path) field.ErrorList {
	f := &faults{}
	if len(versions) == 0 {
		f.required(at, "must specify one of "+strings.Join(reviewVersions, ", "))
		return f.list
	}
	for i, v := range versions {
		if slices.Contains(versions[:i], v) {
			f.invalid(at.Index(i), v, "duplicate version")
			continue
		}
		f.add(invalid(utilvalidation.IsDNS1035Label(v), v, at.Index(i)))
	}
	if known && !knowsReview(versions) {
		f.invalid(at, versions, "must include at least one of "+strings.Join(reviewVersions, ", "))
	}
	return f.list
}

func validateWebhook(h *admissionv1.MutatingWebhook, rules webhookRules, at *field.Path) field.ErrorList {
	f := &faults{}
	f.add(utilvalidation.IsFullyQualifiedName(at.Child("name"), h.Name))
	for i := range h.Rules {
		f.add(validateAdmissionRule(&h.Rules[i], at.Child("rules").Index(i)))
	}
	if h.FailurePolicy != nil {
		among(f, *h.FailurePolicy, at.Child("failurePolicy"), failurePolicies...)
	}
	if h.MatchPolicy != nil {
		among(f, *h.MatchPolicy, at.Child("matchPolicy"), matchPolicies...)
	}
	allowed := sideEffects
	if rules.noSideEffects {
		allowed = noSideEffects
	}
	if h.SideEffects == nil {
		names := make([]string, len(allowed))
		for i, s := range allowed {
			names[i] = string(s)
		}
		f.required(at.Child("sideEffects"), "must specify one of "+strings.Join(names, ", "))
	} else {
		among(f, *h.SideEffects, at.Child("sideEffects"), allowed...)
	}
	if t := h.TimeoutSeconds; t != nil && (*t > 30 || *t < 1) {
		f.invalid(at.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds")
	}
	labels := metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: !rules.strictLabels}
	if h.NamespaceSelector != nil {
		f.add(metav1validation.ValidateLabelSelector(h.NamespaceSelector, labels, at.Child("namespaceSelector")))
	}
	if h.ObjectSelector != nil {
		f.add(metav1validation.ValidateLabelSelector(h.ObjectSelector, labels, at.Child("objectSelector")))
	}
	if h.ReinvocationPolicy != nil {
		among(f, *h.ReinvocationPolicy, at.Child("reinvocationPolicy"), reinvocationPolicies...)
	}
	f.add(validateClientConfig(&h.ClientConfig, at.Child("clientConfig")))
	if rules.conditions {
		f.add(validateMatchConditions(h.MatchConditions, false, rules.stored, at.Child("matchConditions")))
	}
	return f.list
}

func validateClientConfig(c *admissionv1.WebhookClientConfig, at *field.Path) field.ErrorList {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		return field.ErrorList{field.Required(at, "exactly one of url or service is required")}
	case c.URL != nil:
		return definition.URLFaults(*c.URL, at.Child("url"))
	}
	s := c.Service
	return definition.ServiceFaults(s.Namespace, s.Name, deref(s.Port, 443), s.Path, at.Child("service"))
}

// defaultWebhook fills what a webhook of either kind leaves out. The pointers
// are to its fields.
func defaultWebhook(failure **admissionv1.FailurePolicyType, match **admissionv1.MatchPolicyType, namespaces, objects **metav1.LabelSelector,
	timeout **int32, rules []admissionv1.RuleWithOperations, service *admissionv1.ServiceReference) {
	if *failure == nil {
		*failure = new(admissionv1.Fail)
	}
	if *match == nil {
		*match = new(admissionv1.Equivalent)
	}
	if *namespaces == nil {
		*namespaces = &metav1.LabelSelector{}
	}
	if *objects == nil {
		*objects = &metav1.LabelSelector{}
	}
	if *timeout == nil {
		*timeout = new(int32(10))
	}
	for i := range rules {
		defaultScope(&rules[i].Rule)
	}
	if service != nil && service.Port == nil {
		service.Port = new(int32(443))
	}
}
