package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var networkPolicies = &Kind[*networkingv1.NetworkPolicy]{
	GroupVersionKind: networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"),
	Plural:           "networkpolicies",
	Short:            []string{"netpol"},

	Default: func(p *networkingv1.NetworkPolicy) {
		if len(p.Spec.PolicyTypes) == 0 {
			p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
			if len(p.Spec.Egress) > 0 {
				p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
			}
		}
		ports := func(ports []networkingv1.NetworkPolicyPort) {
			for i := range ports {
				fillPtr(&ports[i].Protocol, corev1.ProtocolTCP)
			}
		}
		for i := range p.Spec.Ingress {
			ports(p.Spec.Ingress[i].Ports)
		}
		for i := range p.Spec.Egress {
			ports(p.Spec.Egress[i].Ports)
		}
	},
	Prepare: func(_ context.Context, p, old *networkingv1.NetworkPolicy) {
		p.Generation = 1
		if old != nil {
			p.Generation = old.Generation
			if !same(p.Spec, old.Spec) {
				p.Generation++
			}
		}
	},
	Validate: validateNetworkPolicy,
	Columns: []Column[*networkingv1.NetworkPolicy]{
		nameColumn[*networkingv1.NetworkPolicy](),
		column("Pod-Selector", "string", networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"], 0,
			func(p *networkingv1.NetworkPolicy) any { return metav1.FormatLabelSelector(&p.Spec.PodSelector) }),
		ageColumn[*networkingv1.NetworkPolicy](),
	},
}
