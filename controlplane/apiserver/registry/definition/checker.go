package definition

import (
	"context"

	celgo "github.com/google/cel-go/cel"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/environment"
)

// A checker collects faults by rules that are strict for new definitions. What
// an older server has let in may stay as it is.
type checker struct {
	ctx    context.Context
	faults field.ErrorList

	schemas        bool // each version must have one
	types          bool // of properties must be known
	structural     bool
	prunedDefaults bool
	atomicSets     bool
	mapKeys        bool
	reviewVersions bool // one must be known here
	bundle         bool // must be certificates
	known          known
	same           sets.Set[string] // versions whose schema is as before
	manyFields     sets.Set[string] // versions that may have too many selectable fields
}

func (c *checker) strict() {
	c.schemas, c.types, c.structural, c.prunedDefaults = true, true, true, true
	c.atomicSets, c.mapKeys, c.reviewVersions = true, true, true
}

// lenient is strict but for what old does already.
func (c *checker) lenient(crd, old *apiextensions.CustomResourceDefinition) {
	spec := &old.Spec
	c.schemas = everySchema(spec)
	c.types = !anySchema(spec, func(s *apiextensions.JSONSchemaProps) bool { return s.Type != "" && !schemaTypes.Has(s.Type) })
	c.structural = !anyRoot(spec, nonStructural)
	c.prunedDefaults = !anyRoot(spec, unprunedDefaults)
	c.atomicSets = !anySchema(spec, granularSet)
	c.mapKeys = !anySchema(spec, func(s *apiextensions.JSONSchemaProps) bool { return len(mapKeyFaults(s, nil)) > 0 })
	c.reviewVersions = spec.Conversion == nil || len(spec.Conversion.ConversionReviewVersions) == 0 ||
		knownReviews.HasAny(spec.Conversion.ConversionReviewVersions...)
	c.bundle = established(old)
	if conv := spec.Conversion; c.bundle && conv != nil && conv.WebhookClientConfig != nil {
		c.bundle = BundleFault(conv.WebhookClientConfig.CABundle) == nil
	}
	c.known = knownRules(spec)
	c.same, c.manyFields = sets.New[string](), sets.New[string]()
	if len(spec.SelectableFields) > maxSelectable && equality.Semantic.DeepEqual(spec.SelectableFields, crd.Spec.SelectableFields) {
		c.manyFields.Insert("")
	}
	for i := range crd.Spec.Versions {
		name := crd.Spec.Versions[i].Name
		for k := range spec.Versions {
			if spec.Versions[k].Name != name {
				continue
			}
			if equality.Semantic.DeepEqual(schemaOf(&crd.Spec, i), schemaOf(spec, k)) {
				c.same.Insert(name)
			}
			was, is := spec.Versions[k].SelectableFields, crd.Spec.Versions[i].SelectableFields
			if len(was) > maxSelectable && equality.Semantic.DeepEqual(was, is) {
				c.manyFields.Insert(name)
			}
		}
	}
}

// schemaOf is the schema of a version, its own or the one all share.
func schemaOf(spec *apiextensions.CustomResourceDefinitionSpec, i int) *apiextensions.CustomResourceValidation {
	if s := spec.Versions[i].Schema; s != nil {
		return s
	}
	return spec.Validation
}

func established(crd *apiextensions.CustomResourceDefinition) bool {
	return apiextensions.IsCRDConditionTrue(crd, apiextensions.Established)
}

func nonStructural(s *apiextensions.JSONSchemaProps) bool {
	ss, err := schema.NewStructural(s)
	return err != nil || len(schema.ValidateStructural(nil, ss)) > 0
}

func unprunedDefaults(s *apiextensions.JSONSchemaProps) bool {
	if !within(s, hasDefault) || nonStructural(s) {
		return false
	}
	ss, err := schema.NewStructural(s)
	if err != nil {
		return false
	}
	pruned := ss.DeepCopy()
	return defaulting.PruneDefaults(pruned) == nil && !equality.Semantic.DeepEqual(ss, pruned)
}

// known are the expressions that were there before: they may use what older
// servers understood.
type known struct{ rules, messages sets.Set[string] }

func (k known) RuleEnv(set *environment.EnvSet, expression string) *celgo.Env {
	return envFor(set, k.rules.Has(expression))
}

func (k known) MessageExpressionEnv(set *environment.EnvSet, expression string) *celgo.Env {
	return envFor(set, k.messages.Has(expression))
}

func envFor(set *environment.EnvSet, stored bool) *celgo.Env {
	if stored {
		return set.StoredExpressionsEnv()
	}
	return set.NewExpressionsEnv()
}

func knownRules(spec *apiextensions.CustomResourceDefinitionSpec) known {
	k := known{sets.New[string](), sets.New[string]()}
	anySchema(spec, func(s *apiextensions.JSONSchemaProps) bool {
		for _, r := range s.XValidations {
			k.rules.Insert(r.Rule)
			if r.MessageExpression != "" {
				k.messages.Insert(r.MessageExpression)
			}
		}
		return false
	})
	return k
}

func (c *checker) add(errs ...*field.Error) { c.faults = append(c.faults, errs...) }

func (c *checker) invalid(at *field.Path, value any, msg string) {
	c.add(field.Invalid(at, value, msg))
}
func (c *checker) required(at *field.Path, msg string)  { c.add(field.Required(at, msg)) }
func (c *checker) forbidden(at *field.Path, msg string) { c.add(field.Forbidden(at, msg)) }

func (c *checker) unchanged(now, before any, at *field.Path) {
	c.add(validation.ValidateImmutableField(now, before, at)...)
}
