package definition

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// What rules may cost, as estimated: one expression, and all of a schema.
const (
	expressionLimit = 10000000
	schemaLimit     = 100000000
)

var reasons = []string{
	string(apiextensions.FieldValueDuplicate), string(apiextensions.FieldValueForbidden),
	string(apiextensions.FieldValueInvalid), string(apiextensions.FieldValueRequired),
}

func lines(s string) bool { return strings.ContainsAny(s, "\n\r") }

// ruleTexts checks what can be checked without compiling.
func (w *walk) ruleTexts(s *props, at *field.Path) {
	for i, r := range s.XValidations {
		at := at.Child("x-kubernetes-validations").Index(i)
		rule, message := strings.TrimSpace(r.Rule), strings.TrimSpace(r.Message)
		switch {
		case rule == "":
			w.bad(field.Required(at.Child("rule"), "rule is not specified"))
		case r.Message != "" && message == "":
			w.bad(field.Invalid(at.Child("message"), r.Message, "must be non-empty if specified"))
		case lines(message):
			w.bad(field.Invalid(at.Child("message"), r.Message, "must not contain line breaks"))
		case lines(rule) && message == "":
			w.bad(field.Required(at.Child("message"), "message must be specified if rule contains line breaks"))
		}
		if r.MessageExpression != "" && strings.TrimSpace(r.MessageExpression) == "" {
			w.bad(field.Required(at.Child("messageExpression"), "messageExpression must be non-empty if specified"))
		}
		if r.Reason != nil && !slices.Contains(reasons, string(*r.Reason)) {
			w.bad(field.NotSupported(at.Child("reason"), *r.Reason, reasons))
		}
		if r.FieldPath == "" {
			continue
		}
		if strings.TrimSpace(r.FieldPath) == "" {
			w.bad(field.Invalid(at.Child("fieldPath"), r.FieldPath, "must be non-empty if specified"))
		}
		if lines(r.FieldPath) {
			w.bad(field.Invalid(at.Child("fieldPath"), r.FieldPath, "must not contain line breaks"))
		}
		if ss, err := schema.NewStructural(s); err == nil {
			if _, _, err := fieldPath(r.FieldPath, ss); err != nil {
				w.bad(field.Invalid(at.Child("fieldPath"), r.FieldPath, "must be a valid path"))
			}
		}
	}
}

// compile compiles the rules of one schema and estimates their cost.
func (w *walk) compile(s *props, at *field.Path, p place, r *scope) {
	at = at.Child("x-kubernetes-validations")
	fault := func(errs ...*field.Error) { w.cel = append(w.cel, errs...) }
	t, err := r.types()
	if err != nil {
		fault(field.InternalError(at, fmt.Errorf("internal error: failed to construct type information for x-kubernetes-validations rules: %s", err)))
		return
	}
	set := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	results, err := cel.Compile(t.schema, t.decl, celconfig.PerCallLimit, set, w.known)
	if err != nil {
		fault(field.InternalError(at, err))
		return
	}
	spend := func(cost uint64, name, words string, i int) {
		where := at.Index(i).Child(name)
		if !w.cheap && cost > expressionLimit {
			fault(field.Forbidden(where, tooExpensive(words, cost, expressionLimit)))
		}
		w.rules.spend(where, cost)
	}
	for i, res := range results {
		rule := s.XValidations[i]
		times := res.MaxCardinality
		if r.times != nil {
			times = *r.times
		}
		spend(product(res.MaxCost, times), "rule", "estimated rule cost", i)
		switch {
		case res.Error == nil:
		case res.Error.Type == apiservercel.ErrorTypeRequired:
			fault(field.Required(at.Index(i).Child("rule"), res.Error.Detail))
		default:
			fault(field.Invalid(at.Index(i).Child("rule"), rule, res.Error.Detail))
		}
		switch {
		case res.MessageExpressionError != nil:
			fault(field.Invalid(at.Index(i).Child("messageExpression"), rule, res.MessageExpressionError.Detail))
		case res.MessageExpression != nil:
			spend(res.MessageExpressionMaxCost, "messageExpression", "estimated messageExpression cost", i)
		}
		switch {
		case res.UsesOldSelf && p.apart != nil:
			fault(field.Invalid(at.Index(i).Child("rule"), rule.Rule, fmt.Sprintf("oldSelf cannot be used on the uncorrelatable portion of the schema within %v", p.apart)))
		case !res.UsesOldSelf && rule.OptionalOldSelf != nil:
			fault(field.Invalid(at.Index(i).Child("optionalOldSelf"), *rule.OptionalOldSelf, "may not be set if oldSelf is not used in rule"))
		}
	}
}

// costs adds up what the rules of a schema cost.
type costs struct {
	sum  uint64
	most []expense // the four that cost most
}

type expense struct {
	at   *field.Path
	cost uint64
}

func (c *costs) spend(at *field.Path, cost uint64) {
	if c.sum += cost; c.sum < cost {
		c.sum = math.MaxUint64
	}
	if cost < schemaLimit/100 {
		return
	}
	c.most = append(c.most, expense{at, cost})
	slices.SortStableFunc(c.most, func(a, b expense) int {
		switch {
		case a.cost > b.cost:
			return -1
		case a.cost < b.cost:
			return 1
		}
		return 0
	})
	c.most = c.most[:min(len(c.most), 4)]
}

// total refuses rules that together cost too much.
func (c *costs) total(to *checker, at *field.Path) {
	if c == nil || c.sum <= schemaLimit {
		return
	}
	for _, e := range c.most {
		to.forbidden(e.at, "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema")
	}
	to.forbidden(at, tooExpensive("x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema", c.sum, schemaLimit))
}

func tooExpensive(name string, cost, limit uint64) string {
	factor := fmt.Sprintf("%.1fx", float64(cost)/float64(limit))
	switch by := float64(cost) / float64(limit); {
	case by > 100:
		factor = "more than 100x"
	case by < 1.5:
		factor = fmt.Sprintf("%fx", by)
	}
	return name + " exceeds budget by factor of " + factor + " (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
}

// product is a*b, at most the largest number.
func product(a, b uint64) uint64 {
	if a != 0 && math.MaxUint/a < b {
		return math.MaxUint
	}
	return a * b
}
