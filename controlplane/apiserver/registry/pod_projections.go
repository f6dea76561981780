package registry

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *podCheck) checkTrustBundle(b *corev1.ClusterTrustBundleProjection, at *field.Path) {
	switch {
	case b.Name != nil && b.SignerName != nil:
		c.invalid(at, b, "only one of name and signerName may be used")
	case b.Name != nil:
		if *b.Name == "" {
			c.required(at.Child("name"), "must be a valid object name")
		}
		for _, msg := range trustBundleName(*b.Name) {
			c.invalid(at.Child("name"), *b.Name, fmt.Sprintf("not a valid clustertrustbundlename: %v", msg))
		}
		if b.LabelSelector != nil {
			c.invalid(at.Child("labelSelector"), b.LabelSelector, "labelSelector must be unset if name is specified")
		}
	case b.SignerName != nil:
		if *b.SignerName == "" {
			c.required(at.Child("signerName"), "must be a valid signer name")
		}
		c.add(validateSignerName(*b.SignerName, at.Child("signerName")))
		c.add(metavalidation.ValidateLabelSelector(b.LabelSelector, metavalidation.LabelSelectorValidationOptions{}, at.Child("labelSelector")))
	default:
		c.required(at, "either name or signerName must be specified")
	}
	c.need(b.Path, at, "path")
	c.add(localPath(b.Path, at, "path"))
}

// trustBundleName may begin with its signer: "example.com:signer:name".
func trustBundleName(name string) []string {
	if i := strings.LastIndex(name, ":"); i >= 0 {
		name = name[i+1:]
	}
	return NameIsDNSSubdomain(name, false)
}

func (c *podCheck) checkPodCertificate(p *corev1.PodCertificateProjection, at *field.Path, once func(file, path string)) {
	c.add(validateSignerName(p.SignerName, at.Child("signerName")))
	among(&c.faults, p.KeyType, at.Child("keyType"), "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
	if s := p.MaxExpirationSeconds; s != nil {
		most := int32(7862400) // 91 days
		if isKubernetesSigner(p.SignerName) {
			most = 86400
		}
		if *s < 3600 {
			c.invalid(at.Child("maxExpirationSeconds"), *s, "if provided, maxExpirationSeconds must be >= 3600")
		}
		if *s > most {
			c.invalid(at.Child("maxExpirationSeconds"), *s, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", most))
		}
	}
	n := 0
	for _, f := range []struct{ name, path string }{
		{"credentialBundlePath", p.CredentialBundlePath}, {"keyPath", p.KeyPath}, {"certificateChainPath", p.CertificateChainPath}} {
		if f.path != "" {
			n++
			c.add(localPath(f.path, at, f.name))
			once(f.path, f.path)
		}
	}
	if n == 0 {
		c.required(at, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
	}
}

func isKubernetesSigner(name string) bool {
	domain, _, _ := strings.Cut(name, "/")
	return domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")
}
