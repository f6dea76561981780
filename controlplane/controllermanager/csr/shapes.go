package csr

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// legacyUnknown is the signer of what v1beta1 let go without one.
const legacyUnknown = "kubernetes.io/legacy-unknown"

// shapes are the rules that the API's own signers hold requests to.
var shapes = map[string]func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error{
	certificatesv1.KubeAPIServerClientSignerName:        client,
	certificatesv1.KubeAPIServerClientKubeletSignerName: kubeletClient,
	certificatesv1.KubeletServingSignerName:             kubeletServing,
	legacyUnknown:                                       func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error { return nil },
}

func parse(request []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

func client(_ *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	for _, u := range usages {
		if u != certificatesv1.UsageDigitalSignature && u != certificatesv1.UsageKeyEncipherment && u != certificatesv1.UsageClientAuth {
			return fmt.Errorf("invalid usage for client certificate: %s", u)
		}
	}
	if !slices.Contains(usages, certificatesv1.UsageClientAuth) {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return nil
}

// A fault is one error, in upstream's words.
type fault struct {
	is   bool
	what string
}

func kubeletClient(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	return first(
		fault{!slices.Equal(r.Subject.Organization, []string{"system:nodes"}), "subject organization is not system:nodes"},
		fault{len(r.DNSNames) > 0, "DNS subjectAltNames are not allowed"},
		fault{len(r.EmailAddresses) > 0, "Email subjectAltNames are not allowed"},
		fault{len(r.IPAddresses) > 0, "IP subjectAltNames are not allowed"},
		fault{len(r.URIs) > 0, "URI subjectAltNames are not allowed"},
		fault{!strings.HasPrefix(r.Subject.CommonName, "system:node:"), "subject common name does not begin with system:node:"},
		fault{!usable(usages, certificatesv1.UsageClientAuth), "usages did not match [client auth digital signature key encipherment]"},
	)
}

func kubeletServing(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	return first(
		fault{!slices.Equal(r.Subject.Organization, []string{"system:nodes"}), "subject organization is not system:nodes"},
		fault{len(r.DNSNames) == 0 && len(r.IPAddresses) == 0, "DNS or IP subjectAltName is required"},
		fault{len(r.EmailAddresses) > 0, "Email subjectAltNames are not allowed"},
		fault{len(r.URIs) > 0, "URI subjectAltNames are not allowed"},
		fault{!usable(usages, certificatesv1.UsageServerAuth), "usages did not match [digital signature key encipherment server auth]"},
		fault{!strings.HasPrefix(r.Subject.CommonName, "system:node:"), "subject common name does not begin with system:node:"},
	)
}

func first(faults ...fault) error {
	for _, f := range faults {
		if f.is {
			return errors.New(f.what)
		}
	}
	return nil
}

// usable wants digital signature and auth, with key encipherment or without,
// and nothing else.
func usable(usages []certificatesv1.KeyUsage, auth certificatesv1.KeyUsage) bool {
	want := map[certificatesv1.KeyUsage]bool{certificatesv1.UsageDigitalSignature: true, auth: true, certificatesv1.UsageKeyEncipherment: false}
	for _, u := range usages {
		if _, known := want[u]; !known {
			return false
		}
		want[u] = false
	}
	return !want[certificatesv1.UsageDigitalSignature] && !want[auth]
}
