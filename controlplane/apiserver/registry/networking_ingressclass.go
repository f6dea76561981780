package registry

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
)

var ingressClasses = &Kind[*networkingv1.IngressClass]{
	GroupVersionKind: networkingv1.SchemeGroupVersion.WithKind("IngressClass"),
	Plural:           "ingressclasses",
	RecheckName:      true,
	Cluster:          true,

	Default: func(c *networkingv1.IngressClass) {
		if c.Spec.Parameters != nil {
			fillPtr(&c.Spec.Parameters.Scope, networkingv1.IngressClassParametersReferenceScopeCluster)
		}
	},
	Prepare: func(_ context.Context, c, old *networkingv1.IngressClass) {
		c.Generation = 1
		if old != nil {
			c.Generation = old.Generation
			if !same(c.Spec, old.Spec) {
				c.Generation++
			}
		}
	},
	Validate: validateIngressClass,
	Columns: []Column[*networkingv1.IngressClass]{
		nameColumnOf(func(c *networkingv1.IngressClass) any {
			if c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
				return c.Name + " (default)"
			}
			return c.Name
		}),
		column("Controller", "string", "Controller that is responsible for handling this class", 0,
			func(c *networkingv1.IngressClass) any { return c.Spec.Controller }),
		column("Parameters", "string", "A reference to a resource with additional parameters", 0, func(c *networkingv1.IngressClass) any {
			p := c.Spec.Parameters
			if p == nil {
				return "<none>"
			}
			kind := p.Kind
			if p.APIGroup != nil {
				kind += "." + *p.APIGroup
			}
			return kind + "/" + p.Name
		}),
		ageColumn[*networkingv1.IngressClass](),
	},
}
