package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// ingressClassAnnotation named the class before there was a field.
const ingressClassAnnotation = "kubernetes.io/ingress.class"

var ingresses = &Kind[*networkingv1.Ingress]{
	GroupVersionKind: networkingv1.SchemeGroupVersion.WithKind("Ingress"),
	Plural:           "ingresses",
	Short:            []string{"ing"},
	Prefix:           "ingress",

	Prepare: spec(
		func(i *networkingv1.Ingress) { i.Status = networkingv1.IngressStatus{} },
		func(i, old *networkingv1.Ingress) { i.Status = old.Status },
		func(i, old *networkingv1.Ingress) bool { return !same(i.Spec, old.Spec) }),
	Validate: validateIngress,
	Warn: func(_ context.Context, i, old *networkingv1.Ingress) []string {
		if _, ok := i.Annotations[ingressClassAnnotation]; ok && old == nil && i.Spec.IngressClassName == nil {
			return []string{fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead", ingressClassAnnotation)}
		}
		return nil
	},
	Columns: []Column[*networkingv1.Ingress]{
		nameColumn[*networkingv1.Ingress](),
		column("Class", "string", "The name of the IngressClass resource that should be used for additional configuration", 0,
			func(i *networkingv1.Ingress) any { return deref(i.Spec.IngressClassName, "<none>") }),
		column("Hosts", "string", "Hosts that incoming requests are matched against before the ingress rule", 0,
			func(i *networkingv1.Ingress) any { return ingressHosts(i.Spec.Rules) }),
		column("Address", "string", "Address is a list containing ingress points for the load-balancer", 0, func(i *networkingv1.Ingress) any {
			var all []string
			for _, in := range i.Status.LoadBalancer.Ingress {
				if a := orElse(in.IP, in.Hostname); a != "" {
					all = append(all, a)
				}
			}
			slices.Sort(all)
			return strings.Join(slices.Compact(all), ",")
		}),
		column("Ports", "string", "Ports of TLS configurations that open", 0, func(i *networkingv1.Ingress) any {
			if len(i.Spec.TLS) > 0 {
				return "80, 443"
			}
			return "80"
		}),
		ageColumn[*networkingv1.Ingress](),
	},
	Sub: []Subresource[*networkingv1.Ingress]{
		statusOf(func(i, old *networkingv1.Ingress) { i.Spec = old.Spec }, validateIngressStatus),
	},
}

// ingressHosts are the first three hosts; rules without host take no place
// but are counted with the rest.
func ingressHosts(rules []networkingv1.IngressRule) string {
	var hosts []string
	for _, r := range rules {
		if len(hosts) == 3 {
			return fmt.Sprintf("%s + %d more...", strings.Join(hosts, ","), len(rules)-3)
		}
		if r.Host != "" {
			hosts = append(hosts, r.Host)
		}
	}
	return orElse(strings.Join(hosts, ","), "*")
}
