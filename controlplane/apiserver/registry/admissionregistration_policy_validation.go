package registry

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"

	"knarr/controlplane/apiserver/expressions"
)

// policyFrame checks what both kinds of policy have.
func policyFrame(failure *admissionv1.FailurePolicyType, param *admissionv1.ParamKind, match *admissionv1.MatchResources, at *field.Path) field.ErrorList {
	f := &faults{}
	if failure == nil {
		f.required(at.Child("failurePolicy"), "")
	} else {
		among(f, *failure, at.Child("failurePolicy"), failurePolicies...)
	}
	if param != nil {
		f.add(validateParamKind(param, at.Child("paramKind")))
	}
	if match == nil {
		f.required(at.Child("matchConstraints"), "")
		return f.list
	}
	f.add(validateMatchResources(match, at.Child("matchConstraints")))
	if len(match.ResourceRules) == 0 {
		f.required(at.Child("matchConstraints", "resourceRules"), "")
	}
	return f.list
}

func validateParamKind(p *admissionv1.ParamKind, at *field.Path) field.ErrorList {
	f := &faults{}
	apiVersion := at.Child("apiVersion")
	group, version, ok := strings.Cut(p.APIVersion, "/")
	if !ok {
		group, version = "", p.APIVersion
	}
	switch {
	case p.APIVersion == "":
		f.required(apiVersion, "")
	case strings.Contains(version, "/"):
		f.invalid(apiVersion, p.APIVersion, "unexpected GroupVersion string: "+p.APIVersion)
	default:
		if msgs := utilvalidation.IsDNS1123Subdomain(group); group != "" && len(msgs) > 0 {
			f.invalid(apiVersion, group, strings.Join(msgs, ","))
		}
		if version == "" {
			f.invalid(apiVersion, p.APIVersion, "version must be specified")
		} else if msgs := utilvalidation.IsDNS1035Label(version); len(msgs) > 0 {
			f.invalid(apiVersion, version, strings.Join(msgs, ","))
		}
	}
	if p.Kind == "" {
		f.required(at.Child("kind"), "")
	} else if msgs := utilvalidation.IsDNS1035Label(strings.ToLower(p.Kind)); len(msgs) > 0 {
		f.invalid(at.Child("kind"), p.Kind, "may have mixed case, but should otherwise match: "+strings.Join(msgs, ","))
	}
	return f.list
}

func validateValidatingPolicy(p, old *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
	at, s, f := field.NewPath("spec"), &p.Spec, &faults{}
	f.add(policyFrame(s.FailurePolicy, s.ParamKind, s.MatchConstraints, at))
	params := s.ParamKind != nil
	known, checkConditions := stored{}, true
	if old != nil {
		known = validatingStored(&old.Spec)
		checkConditions = !same(s.ParamKind, old.Spec.ParamKind) || !same(s.MatchConditions, old.Spec.MatchConditions)
	}
	if checkConditions {
		f.add(validateMatchConditions(s.MatchConditions, params, known, at.Child("matchConditions")))
	}
	var c plugincel.Compiler = plainCompiler()
	if len(s.Variables) > 0 {
		composed, errs := policyCompiler(at)
		if errs != nil {
			return append(f.list, errs...)
		}
		f.add(validateVariables(composed, s.Variables, params, known, at.Child("variables")))
		c = composed
	}
	if len(s.Validations) == 0 && len(s.AuditAnnotations) == 0 {
		const text = "validations or auditAnnotations must contain at least one item"
		f.required(at.Child("validations"), text)
		f.required(at.Child("auditAnnotations"), text)
		return f.list
	}
	for i := range s.Validations {
		f.add(validateValidation(c, &s.Validations[i], params, known, at.Child("validations").Index(i)))
	}
	f.add(validateAuditAnnotations(c, p.Name, s.AuditAnnotations, params, known, at.Child("auditAnnotations")))
	return f.list
}

func validatingStored(s *admissionv1.ValidatingAdmissionPolicySpec) stored {
	known := conditionsStored(s.MatchConditions)
	for _, v := range s.Validations {
		known[v.Expression], known[v.MessageExpression] = true, true
	}
	for _, a := range s.AuditAnnotations {
		known[a.ValueExpression] = true
	}
	return known
}

// refusalReasons are what a validation may answer with.
var refusalReasons = []metav1.StatusReason{metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge}

func validateValidation(c plugincel.Compiler, v *admissionv1.Validation, params bool, known stored, at *field.Path) field.ErrorList {
	f := &faults{}
	if strings.TrimSpace(v.Expression) == "" {
		f.required(at.Child("expression"), "expression is not specified")
	} else {
		f.add(validateExpression(c, &expressions.Condition{Expression: v.Expression},
			plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, known, at.Child("expression")))
	}
	if strings.TrimSpace(v.MessageExpression) != "" {
		f.add(validateExpression(c, &expressions.Message{Expression: v.MessageExpression},
			plugincel.OptionalVariableDeclarations{HasParams: params}, known, at.Child("messageExpression")))
	} else if v.MessageExpression != "" {
		f.invalid(at.Child("messageExpression"), v.MessageExpression, "must be non-empty if specified")
	}
	message := strings.TrimSpace(v.Message)
	if v.Message != "" && message == "" {
		f.invalid(at.Child("message"), v.Message, "must be non-empty if specified")
	} else if strings.ContainsAny(message, "\n\r") {
		f.invalid(at.Child("message"), v.Message, "must not contain line breaks")
	}
	if v.Reason != nil {
		among(f, *v.Reason, at.Child("reason"), refusalReasons...)
	}
	return f.list
}

func validateAuditAnnotations(c plugincel.Compiler, policy string, list []admissionv1.AuditAnnotation, params bool, known stored, at *field.Path) field.ErrorList {
	const most, longest = 20, 5 * 1024
	f := &faults{}
	if len(list) > most {
		f.invalid(at, list, fmt.Sprintf("must not have more than %d auditAnnotations", most))
	}
	for i, a := range list {
		at := at.Index(i)
		if policy != "" {
			f.add(qualifiedName(policy+"/"+a.Key, at.Child("key")))
		} else {
			f.invalid(at.Child("key"), a.Key, "requires metadata.name be non-empty")
		}
		value, text := at.Child("valueExpression"), strings.TrimSpace(a.ValueExpression)
		switch {
		case text == "":
			f.required(value, "valueExpression is not specified")
		case len(text) > longest:
			f.required(value, fmt.Sprintf("must not exceed %d bytes in length", longest))
		default:
			result := c.CompileCELExpression(&expressions.Annotation{Expression: text},
				plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, known.kind(a.ValueExpression))
			if result.Error != nil {
				f.list = append(f.list, expressionFault(result.Error, a.ValueExpression, value))
			}
		}
		if slices.ContainsFunc(list[:i], func(o admissionv1.AuditAnnotation) bool { return o.Key == a.Key }) {
			f.duplicate(at.Child("key"), a.Key)
		}
	}
	return f.list
}

func validateMutatingPolicy(p, old *admissionv1.MutatingAdmissionPolicy) field.ErrorList {
	at, s, f := field.NewPath("spec"), &p.Spec, &faults{}
	f.add(policyFrame(s.FailurePolicy, s.ParamKind, s.MatchConstraints, at))
	if s.MatchConstraints != nil {
		f.add(onlyMutatingOperations(s.MatchConstraints, at.Child("matchConstraints")))
	}
	params := s.ParamKind != nil
	known, checkConditions := stored{}, true
	if old != nil {
		known = conditionsStored(old.Spec.MatchConditions)
		for _, m := range old.Spec.Mutations {
			if m.ApplyConfiguration != nil {
				known[m.ApplyConfiguration.Expression] = true
			}
			if m.JSONPatch != nil {
				known[m.JSONPatch.Expression] = true
			}
		}
		checkConditions = !same(s.ParamKind, old.Spec.ParamKind) || !same(s.MatchConditions, old.Spec.MatchConditions)
	}
	if checkConditions {
		f.add(validateMatchConditions(s.MatchConditions, params, known, at.Child("matchConditions")))
	}
	c, errs := policyCompiler(at)
	if errs != nil {
		return append(f.list, errs...)
	}
	f.add(validateVariables(c, s.Variables, params, known, at.Child("variables")))
	if len(s.Mutations) == 0 {
		f.required(at.Child("mutations"), "mutations must contain at least one item")
	}
	for i := range s.Mutations {
		f.add(validateMutation(c, &s.Mutations[i], params, known, at.Child("mutations").Index(i)))
	}
	if s.ReinvocationPolicy == "" {
		f.required(at.Child("reinvocationPolicy"), "")
	} else {
		among(f, s.ReinvocationPolicy, at.Child("reinvocationPolicy"), reinvocationPolicies...)
	}
	return f.list
}

func validateMutation(c plugincel.Compiler, m *admissionv1.Mutation, params bool, known stored, at *field.Path) field.ErrorList {
	f := &faults{}
	declared := plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true, HasPatchTypes: true}
	apply, json := at.Child("applyConfiguration"), at.Child("jsonPatch")
	switch m.PatchType {
	case "":
		f.required(at.Child("patchType"), "")
	case admissionv1.PatchTypeJSONPatch:
		if m.JSONPatch == nil {
			f.required(json, "must be specified when patchType is JSONPatch")
		} else if text := strings.TrimSpace(m.JSONPatch.Expression); text == "" {
			f.required(json.Child("expression"), "")
		} else {
			f.add(validateExpression(c, &patch.JSONPatchCondition{Expression: text}, declared, known, json.Child("expression")))
		}
		if m.ApplyConfiguration != nil {
			f.invalid(apply, "{applyConfiguration}", "must not be specified when patchType is JSONPatch")
		}
	case admissionv1.PatchTypeApplyConfiguration:
		if m.ApplyConfiguration == nil {
			f.required(apply, "must be specified when patchType is ApplyConfiguration")
		} else if text := strings.TrimSpace(m.ApplyConfiguration.Expression); text == "" {
			f.required(apply.Child("expression"), "")
		} else {
			f.add(validateExpression(c, &patch.ApplyConfigurationCondition{Expression: text}, declared, known, apply.Child("expression")))
		}
		if m.JSONPatch != nil {
			f.invalid(json, "{jsonPatch}", "must not be specified when patchType is ApplyConfiguration")
		}
	default:
		among(f, m.PatchType, at.Child("patchType"), admissionv1.PatchTypeApplyConfiguration, admissionv1.PatchTypeJSONPatch)
	}
	return f.list
}

// bindingFrame checks what both kinds of binding have.
func bindingFrame(policy string, param *admissionv1.ParamRef, match *admissionv1.MatchResources, at *field.Path) field.ErrorList {
	f := &faults{}
	if policy == "" {
		f.required(at.Child("policyName"), "")
	} else {
		f.add(invalid(validation.NameIsDNSSubdomain(policy, false), policy, at.Child("policyName")))
	}
	f.add(validateParamRef(param, at.Child("paramRef")))
	f.add(validateMatchResources(match, at.Child("matchResources")))
	return f.list
}

func validateParamRef(r *admissionv1.ParamRef, at *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	const exclusive = "name and selector are mutually exclusive"
	f := &faults{}
	if r.Name != "" {
		f.add(invalid(content.IsPathSegmentName(r.Name), r.Name, at.Child("name")))
		if r.Selector != nil {
			f.forbidden(at.Child("name"), exclusive)
		}
	}
	if r.Selector != nil {
		f.add(metav1validation.ValidateLabelSelector(r.Selector, metav1validation.LabelSelectorValidationOptions{}, at.Child("selector")))
		if r.Name != "" {
			f.forbidden(at.Child("selector"), exclusive)
		}
	}
	if r.Name == "" && r.Selector == nil {
		f.required(at, "one of name or selector must be specified")
	}
	if action := at.Child("parameterNotFoundAction"); r.ParameterNotFoundAction == nil || *r.ParameterNotFoundAction == "" {
		f.required(action, "")
	} else {
		among(f, *r.ParameterNotFoundAction, action, admissionv1.DenyAction, admissionv1.AllowAction)
	}
	return f.list
}

func validateValidationActions(list []admissionv1.ValidationAction, at *field.Path) field.ErrorList {
	f := &faults{}
	for i, a := range list {
		among(f, a, at.Index(i), admissionv1.Audit, admissionv1.Deny, admissionv1.Warn)
		if slices.Contains(list[:i], a) {
			f.duplicate(at.Index(i), a)
		}
	}
	if slices.Contains(list, admissionv1.Deny) && slices.Contains(list, admissionv1.Warn) {
		f.invalid(at, list, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)")
	}
	if len(list) == 0 {
		f.required(at, "at least one validation action is required")
	}
	return f.list
}
