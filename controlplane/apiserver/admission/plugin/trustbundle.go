package plugin

import (
	"context"
	"fmt"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/authz"
)

// clusterTrustBundleAttest asks for a signer's right before its trust bundle is taken:
// whoever writes one decides whom others trust.
type clusterTrustBundleAttest struct{ authorizer authz.Authorizer }

func (*clusterTrustBundleAttest) Name() string { return "ClusterTrustBundleAttest" }

func (c *clusterTrustBundleAttest) Validate(ctx context.Context, a *admission.Attributes) error {
	b, ok := a.Object.(*certificatesv1beta1.ClusterTrustBundle)
	if !ok || a.Operation != admission.Create && a.Operation != admission.Update || b.Spec.SignerName == "" || onlyCollectorFields(a.Object, a.Old) {
		return nil
	}
	if signer(ctx, c.authorizer, a, "attest", b.Spec.SignerName) {
		return nil
	}
	return forbidden(a, fmt.Errorf("user not permitted to attest for signerName %q", b.Spec.SignerName))
}
