package plugin

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/authz"
)

// certificateApproval asks for the right to approve what a signer will sign.
// The stored object names the signer: nobody may change it on the way.
type certificateApproval struct{ authorizer authz.Authorizer }

func (*certificateApproval) Name() string { return "CertificateApproval" }

func (c *certificateApproval) Validate(ctx context.Context, a *admission.Attributes) error {
	old, ok := a.Old.(*certificatesv1.CertificateSigningRequest)
	if !ok || a.Operation != admission.Update || a.Subresource != "approval" || signer(ctx, c.authorizer, a, "approve", old.Spec.SignerName) {
		return nil
	}
	return forbidden(a, fmt.Errorf("user not permitted to approve requests with signerName %q", old.Spec.SignerName))
}

// certificateSigning asks for a signer's right before its word is taken.
type certificateSigning struct{ authorizer authz.Authorizer }

func (*certificateSigning) Name() string { return "CertificateSigning" }

func (c *certificateSigning) Validate(ctx context.Context, a *admission.Attributes) error {
	old, ok := a.Old.(*certificatesv1.CertificateSigningRequest)
	request, is := a.Object.(*certificatesv1.CertificateSigningRequest)
	if !ok || !is || a.Operation != admission.Update || a.Subresource != "status" {
		return nil
	}
	if reflect.DeepEqual(old.Status.Certificate, request.Status.Certificate) &&
		apiequality.Semantic.DeepEqual(old.Status.Conditions, request.Status.Conditions) {
		return nil
	}
	if signer(ctx, c.authorizer, a, "sign", old.Spec.SignerName) {
		return nil
	}
	return forbidden(a, fmt.Errorf("user not permitted to sign requests with signerName %q", old.Spec.SignerName))
}

// signer reports whether the user may do that in the name of a signer, or of all
// signers of its domain.
func signer(ctx context.Context, z authz.Authorizer, a *admission.Attributes, verb, name string) bool {
	domain, _, _ := strings.Cut(name, "/")
	for _, n := range []string{name, domain + "/*"} {
		if ok, _ := authz.Allows(ctx, z, &authz.Attributes{
			User: a.User, Verb: verb, Name: n, Group: certificatesv1.GroupName, Version: "*", Resource: "signers", IsResource: true,
		}); ok {
			return true
		}
	}
	return false
}

// certificateSubjectRestriction lets nobody ask for a client certificate of
// those who may do everything.
type certificateSubjectRestriction struct{}

func (certificateSubjectRestriction) Name() string { return "CertificateSubjectRestriction" }

func (certificateSubjectRestriction) Validate(_ context.Context, a *admission.Attributes) error {
	request, ok := a.Object.(*certificatesv1.CertificateSigningRequest)
	if !ok || a.Operation != admission.Create || a.Subresource != "" || request.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	groups, err := organizations(request.Spec.Request)
	switch {
	case err != nil:
		return forbidden(a, fmt.Errorf("failed to parse CSR: %w", err))
	case slices.Contains(groups, "system:masters"):
		return forbidden(a, fmt.Errorf("use of %s signer with system:masters group is not allowed", certificatesv1.KubeAPIServerClientSignerName))
	}
	return nil
}

func organizations(request []byte) ([]string, error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	return csr.Subject.Organization, nil
}
