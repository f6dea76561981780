package plugin

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"knarr/controlplane/apiserver/admission"
)

// denyServiceExternalIPs keeps a Service from claiming addresses that it did
// not have: whoever names one takes its traffic (CVE-2020-8554).
type denyServiceExternalIPs struct{}

func (denyServiceExternalIPs) Name() string { return "DenyServiceExternalIPs" }

func (denyServiceExternalIPs) Validate(_ context.Context, a *admission.Attributes) error {
	service, ok := a.Object.(*corev1.Service)
	if !ok || !is(a, "services", "") {
		return nil
	}
	var had []string
	if old, ok := a.Old.(*corev1.Service); ok {
		had = old.Spec.ExternalIPs
	}
	for _, ip := range service.Spec.ExternalIPs {
		if !slices.Contains(had, ip) {
			return forbidden(a, errors.New("Use of external IPs is denied by admission control"))
		}
	}
	return nil
}
