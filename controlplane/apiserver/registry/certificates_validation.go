package registry

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateSignerName checks a name of the form domain/path.
func validateSignerName(name string, at *field.Path) field.ErrorList {
	var f faults
	if name == "" {
		f.required(at, "")
		return f.list
	}
	parts := strings.Split(name, "/")
	if len(parts) != 2 {
		f.invalid(at, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
		return f.list
	}
	const most = 253 + 1 + 63 + 1 + 253
	if len(name) > most {
		f.list = append(f.list, field.TooLong(at, "", most))
	}
	f.add(dnsSubdomain(parts[0], at))
	if len(strings.Split(parts[0], ".")) < 2 {
		f.invalid(at, parts[0], "should be a domain with at least two segments separated by dots")
	}
	f.add(dnsSubdomain(parts[1], at))
	return f.list
}

var keyUsages = []certificatesv1.KeyUsage{
	certificatesv1.UsageAny, certificatesv1.UsageCRLSign, certificatesv1.UsageCertSign, certificatesv1.UsageClientAuth,
	certificatesv1.UsageCodeSigning, certificatesv1.UsageContentCommitment, certificatesv1.UsageDataEncipherment,
	certificatesv1.UsageDecipherOnly, certificatesv1.UsageDigitalSignature, certificatesv1.UsageEmailProtection,
	certificatesv1.UsageEncipherOnly, certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel,
	certificatesv1.UsageIPsecUser, certificatesv1.UsageKeyAgreement, certificatesv1.UsageKeyEncipherment,
	certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC, certificatesv1.UsageOCSPSigning,
	certificatesv1.UsageSMIME, certificatesv1.UsageServerAuth, certificatesv1.UsageSigning, certificatesv1.UsageTimestamping,
}

// isRequest checks that data is a certificate request signed with its own key.
func isRequest(data []byte) error {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	return r.CheckSignature()
}

// isCertificate checks that data is nothing but certificates.
func isCertificate(data []byte) error {
	for n := 0; ; n++ {
		block, rest := pem.Decode(data)
		switch {
		case block == nil && n == 0:
			return errors.New("must contain at least one CERTIFICATE PEM block")
		case block == nil:
			return nil
		case block.Type != "CERTIFICATE":
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		case len(block.Headers) > 0:
			return errors.New("no PEM block headers are permitted")
		}
		if _, err := x509.ParseCertificates(block.Bytes); err != nil {
			return err
		}
		data = rest
	}
}

func validateSigningRequest(_ context.Context, r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	if old != nil {
		return validateRequestUpdate(r, old, false, false)
	}
	return validateRequest(r, nil)
}

func validateRequestApproval(_ context.Context, r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return validateRequestUpdate(r, old, true, false)
}

func validateRequestStatus(_ context.Context, r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return validateRequestUpdate(r, old, false, true)
}

func validateRequest(r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	var f faults
	at := field.NewPath("spec")
	if err := isRequest(r.Spec.Request); err != nil {
		f.invalid(at.Child("request"), r.Spec.Request, err.Error())
	}
	if len(r.Spec.Usages) == 0 {
		f.required(at.Child("usages"), "")
	}
	seen := map[certificatesv1.KeyUsage]bool{}
	for i, u := range r.Spec.Usages {
		f.add(oneOf(u, at.Child("usages").Index(i), append([]certificatesv1.KeyUsage(nil), keyUsages...)...))
		if seen[u] {
			f.duplicate(at.Child("usages").Index(i), u)
		}
		seen[u] = true
	}
	const legacy = "kubernetes.io/legacy-unknown"
	if r.Spec.SignerName == legacy && (old == nil || old.Spec.SignerName != legacy) {
		f.invalid(at.Child("signerName"), r.Spec.SignerName, "the legacy signerName is not allowed via this API version")
	} else {
		f.add(validateSignerName(r.Spec.SignerName, at.Child("signerName")))
	}
	if e := r.Spec.ExpirationSeconds; e != nil && *e < 600 {
		f.invalid(at.Child("expirationSeconds"), *e, "may not specify a duration less than 600 seconds (10 minutes)")
	}
	f.add(validateRequestConditions(r.Status.Conditions, field.NewPath("status", "conditions")))
	if len(r.Status.Certificate) > 0 {
		if err := isCertificate(r.Status.Certificate); err != nil {
			f.invalid(field.NewPath("status", "certificate"), "<certificate data>", err.Error())
		}
	}
	return f.list
}

func validateRequestConditions(conditions []certificatesv1.CertificateSigningRequestCondition, at *field.Path) field.ErrorList {
	var f faults
	seen := map[certificatesv1.RequestConditionType]bool{}
	for i, c := range conditions {
		p := at.Index(i)
		if c.Type == "" {
			f.required(p.Child("type"), "")
		}
		allowed := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}
		switch c.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			allowed = allowed[:1]
		}
		f.add(oneOfNeeded(c.Status, p.Child("status"), allowed...))
		if (c.Type == certificatesv1.CertificateApproved && seen[certificatesv1.CertificateDenied]) ||
			(c.Type == certificatesv1.CertificateDenied && seen[certificatesv1.CertificateApproved]) {
			f.invalid(at, c.Type, "Approved and Denied conditions are mutually exclusive")
		}
		if seen[c.Type] {
			f.duplicate(p.Child("type"), c.Type)
		}
		seen[c.Type] = true
	}
	return f.list
}

// validateRequestUpdate: decisions are for approval, certificates for signers.
func validateRequestUpdate(r, old *certificatesv1.CertificateSigningRequest, mayDecide, maySign bool) field.ErrorList {
	var f faults
	f.add(validateRequest(r, old))
	at := field.NewPath("status", "conditions")
	for _, typ := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		of := func(r *certificatesv1.CertificateSigningRequest) (list []certificatesv1.CertificateSigningRequestCondition) {
			for _, c := range r.Status.Conditions {
				if c.Type == typ {
					list = append(list, c)
				}
			}
			return list
		}
		now, was := of(r), of(old)
		decision := typ != certificatesv1.CertificateFailed
		switch {
		case len(now) < len(was):
			f.forbidden(at, fmt.Sprintf("updates may not remove a condition of type %q", typ))
		case !decision || mayDecide:
		case len(now) > len(was):
			f.forbidden(at, fmt.Sprintf("updates may not add a condition of type %q", typ))
		case !same(now, was):
			f.forbidden(at, fmt.Sprintf("updates may not modify a condition of type %q\n%v", typ, Difference(was, now)))
		}
	}
	if !bytes.Equal(r.Status.Certificate, old.Status.Certificate) {
		p := field.NewPath("status", "certificate")
		if !maySign {
			f.forbidden(p, "updates may not set certificate content")
		} else if len(old.Status.Certificate) > 0 {
			f.forbidden(p, "updates may not modify existing certificate content")
		}
	}
	return f.list
}
