package registry

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/mail"
	"strings"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of upstream's API, in bytes, seconds and time.
const (
	maxCertificateKey   = 10 << 10
	maxCertificateChain = 100 << 10
	minCertificateTime  = 3600
	clockSkew           = 5 * time.Minute
	refreshMargin       = 10 * time.Minute
)

// maxCertificateTime is how many seconds a pod's certificate may live.
func maxCertificateTime(signer string) int32 {
	if isKubernetesSigner(signer) {
		return 24 * 3600
	}
	return 91 * 24 * 3600
}

func validatePodCertificate(_ context.Context, r, old podCertificate) field.ErrorList {
	var f faults
	at, s := field.NewPath("spec"), &r.Spec
	if old != nil {
		return unchanged(r.Spec, old.Spec, at)
	}
	f.add(validateSignerName(s.SignerName, at.Child("signerName")))
	annotations := at.Child("unverifiedUserAnnotations")
	for k := range s.UnverifiedUserAnnotations {
		f.add(utilvalidation.IsDomainPrefixedKey(annotations, strings.ToLower(k)))
	}
	if apivalidation.ValidateAnnotationsSize(s.UnverifiedUserAnnotations) != nil {
		f.list = append(f.list, field.TooLong(annotations, "", apivalidation.TotalAnnotationSizeLimitB))
	}
	for _, n := range []struct{ name, of, uid, ofUID string }{
		{"podName", s.PodName, "podUID", string(s.PodUID)},
		{"serviceAccountName", s.ServiceAccountName, "serviceAccountUID", string(s.ServiceAccountUID)},
		{"nodeName", string(s.NodeName), "nodeUID", string(s.NodeUID)},
	} {
		for _, msg := range NameIsDNSSubdomain(n.of, false) {
			f.invalid(at.Child(n.name), n.of, msg)
		}
		if n.ofUID == "" {
			f.invalid(at.Child(n.uid), n.ofUID, "must not be empty")
		}
		if len(n.ofUID) > 128 {
			f.list = append(f.list, field.TooLong(at.Child(n.uid), n.ofUID, 128))
		}
	}
	seconds := at.Child("maxExpirationSeconds")
	switch most := maxCertificateTime(s.SignerName); {
	case s.MaxExpirationSeconds == nil:
		f.required(seconds, "must be set")
		return f.list
	case *s.MaxExpirationSeconds < minCertificateTime || *s.MaxExpirationSeconds > most:
		f.invalid(seconds, *s.MaxExpirationSeconds, fmt.Sprintf("must be in the range [%d, %d]", minCertificateTime, most))
	}
	stub, key, proof := len(s.StubPKCS10Request) != 0, len(s.PKIXPublicKey) != 0, len(s.ProofOfPossession) != 0 //nolint:staticcheck // deprecated, still taken
	switch {
	case stub && !key && !proof:
		f.add(validateStub(s.StubPKCS10Request, at.Child("stubPKCS10Request")))
	case !stub && key && proof:
		f.add(validateKey(s, at))
	default:
		f.invalid(at, field.OmitValueType{}, "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set")
	}
	return f.list
}

// keyFault is what is wrong about a public key: its value, if that is to be shown, and
// why.
func keyFault(key crypto.PublicKey, curves string) (value any, why string) {
	switch k := key.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() && k.Curve != elliptic.P521() {
			return "curve " + k.Curve.Params().Name, "elliptic public keys must use curve " + curves
		}
	case *rsa.PublicKey:
		if bits := k.Size() * 8; bits != 3072 && bits != 4096 {
			return fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096"
		}
	default:
		return nil, "unknown public key type; supported types are Ed25519, ECDSA, and RSA"
	}
	return nil, ""
}

func validateStub(stub []byte, at *field.Path) field.ErrorList {
	if len(stub) > maxCertificateKey {
		return field.ErrorList{field.TooLong(at, stub, maxCertificateKey)}
	}
	r, err := x509.ParseCertificateRequest(stub)
	if err != nil {
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, "must be a valid PKCS#10 CSR")}
	}
	if value, why := keyFault(r.PublicKey, "P256, P384, or P521"); why != "" {
		if value == nil {
			value = field.OmitValueType{}
		}
		return field.ErrorList{field.Invalid(at, value, why)}
	}
	if r.CheckSignature() != nil {
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, "invalid signature")}
	}
	return nil
}

// validateKey checks the older form of a request: a key, and the pod's UID signed with
// it.
func validateKey(s *certificatesv1beta1.PodCertificateRequestSpec, at *field.Path) field.ErrorList {
	public, proof := s.PKIXPublicKey, s.ProofOfPossession //nolint:staticcheck // deprecated, still taken
	keyAt, proofAt := at.Child("pkixPublicKey"), at.Child("proofOfPossession")
	switch {
	case len(public) > maxCertificateKey:
		return field.ErrorList{field.TooLong(keyAt, public, maxCertificateKey)}
	case len(proof) > maxCertificateKey:
		return field.ErrorList{field.TooLong(proofAt, proof, maxCertificateKey)}
	}
	key, err := x509.ParsePKIXPublicKey(public)
	if err != nil {
		return field.ErrorList{field.Invalid(keyAt, public, "must be a valid PKIX-serialized public key")}
	}
	if value, why := keyFault(key, "P256 or P384"); why != "" {
		if value == nil {
			value = public
		}
		return field.ErrorList{field.Invalid(keyAt, value, why)}
	}
	if !signed(key, []byte(s.PodUID), proof) {
		return field.ErrorList{field.Invalid(proofAt, field.OmitValueType{}, "could not verify proof-of-possession signature")}
	}
	return nil
}

func signed(key crypto.PublicKey, text, signature []byte) bool {
	sum := sha256.Sum256(text)
	switch k := key.(type) {
	case ed25519.PublicKey:
		return ed25519.Verify(k, text, signature)
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(k, sum[:], signature)
	case *rsa.PublicKey:
		return rsa.VerifyPSS(k, crypto.SHA256, sum[:], signature, nil) == nil
	}
	return false
}

// validatePodCertificateStatus lets a request end once, and a certificate be what was
// asked for.
func validatePodCertificateStatus(_ context.Context, r, old podCertificate) field.ErrorList {
	var f faults
	at := field.NewPath("status")
	const issued, denied, failed = certificatesv1beta1.PodCertificateRequestConditionTypeIssued,
		certificatesv1beta1.PodCertificateRequestConditionTypeDenied, certificatesv1beta1.PodCertificateRequestConditionTypeFailed
	known := 0
	for i, c := range r.Status.Conditions {
		p := at.Child("conditions", fmt.Sprintf("[%d]", i))
		switch c.Type {
		case issued, denied, failed:
			if known++; known > 1 {
				f.invalid(p.Child("type"), c.Type, `There may be at most one condition with type "Issued", "Denied", or "Failed"`)
			}
			f.add(oneOf(c.Status, p.Child("status"), metav1.ConditionTrue))
		default:
			f.add(oneOf(c.Type, p.Child("type"), issued, denied, failed))
		}
	}
	f.add(metavalidation.ValidateConditions(r.Status.Conditions, at.Child("conditions")))
	if len(f.list) > 0 {
		return f.list
	}
	changed := func(a, b certificatesv1beta1.PodCertificateRequestStatus, why string) field.ErrorList {
		if equality.Semantic.DeepEqual(a, b) {
			return nil
		}
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, why)}
	}
	if ended(old) {
		return changed(r.Status, old.Status, "immutable after PodCertificateRequest is issued, denied, or failed")
	}
	switch podCertificateState(r) {
	case denied, failed:
		return changed(r.Status, certificatesv1beta1.PodCertificateRequestStatus{Conditions: r.Status.Conditions},
			"non-condition status fields must be empty when denying or failing the PodCertificateRequest")
	case issued:
		return validateIssued(r, old, at)
	}
	return changed(r.Status, old.Status, `status is immutable unless transitioning to "Issued", "Denied", or "Failed"`)
}

// validateIssued checks the certificate of a request, and what its status says of it.
func validateIssued(r, old podCertificate, at *field.Path) field.ErrorList {
	var f faults
	s, chainAt := &r.Status, at.Child("certificateChain")
	if len(s.CertificateChain) > maxCertificateChain {
		return field.ErrorList{field.TooLong(chainAt, s.CertificateChain, maxCertificateChain)}
	}
	bad := func(p *field.Path, value any, why string) field.ErrorList {
		return field.ErrorList{field.Invalid(p, value, why)}
	}
	leaf, why := chain([]byte(s.CertificateChain))
	if why != "" {
		return bad(chainAt, s.CertificateChain, why)
	}
	for _, name := range leaf.DNSNames {
		if name == "" {
			f.invalid(chainAt, name, "leaf certificate should not contain empty DNSName")
		}
		if strings.Contains(name, "..") {
			f.invalid(chainAt, name, "leaf certificate's DNSName should not contain '..'")
		}
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
			f.invalid(chainAt, name, "leaf certificate's DNSName should not start or end with '.'")
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			f.invalid(chainAt, address, "leaf certificate should not contain invalid EmailAddress")
		}
	}
	key, err := requestedKey(&old.Spec)
	if err != nil {
		f.invalid(field.NewPath("spec"), field.OmitValueType{}, err.Error())
		return f.list
	}
	if k, ok := key.(interface{ Equal(crypto.PublicKey) bool }); !ok || !k.Equal(leaf.PublicKey) {
		f.invalid(chainAt, s.CertificateChain, "leaf certificate was not issued to the requested public key")
		return f.list
	}
	begin, end, refresh := at.Child("notBefore"), at.Child("notAfter"), at.Child("beginRefreshAt")
	for _, t := range []struct {
		time *metav1.Time
		at   *field.Path
		why  string
	}{
		{s.NotBefore, begin, "must be present and consistent with the issued certificate"},
		{s.NotAfter, end, "must be present and consistent with the issued certificate"},
		{s.BeginRefreshAt, refresh, "must be present and in the range [notbefore+10min, notafter-10min]"},
	} {
		if t.time == nil {
			f.required(t.at, t.why)
		}
	}
	if len(f.list) > 0 {
		return f.list
	}
	lifetime, most := leaf.NotAfter.Sub(leaf.NotBefore), *r.Spec.MaxExpirationSeconds
	now := time.Now()
	switch {
	case !s.NotBefore.Time.Equal(leaf.NotBefore):
		return bad(begin, s.NotBefore.Time, "must be set to the NotBefore time encoded in the leaf certificate")
	case !s.NotBefore.After(now.Add(-clockSkew)) || !s.NotBefore.Time.Before(now.Add(clockSkew)):
		return bad(begin, s.NotBefore.Time, "must be set to within 5 minutes of kube-apiserver's current time")
	case !s.NotAfter.Time.Equal(leaf.NotAfter):
		return bad(end, s.NotAfter.Time, "must be set to the NotAfter time encoded in the leaf certificate")
	case lifetime < time.Hour:
		return bad(chainAt, lifetime, "leaf certificate lifetime must be >= 1 hour")
	case lifetime > time.Duration(most)*time.Second:
		return bad(chainAt, lifetime, fmt.Sprintf("leaf certificate lifetime must be <= spec.maxExpirationSeconds (%v)", most))
	case s.BeginRefreshAt.Time.Before(s.NotBefore.Add(refreshMargin)):
		return bad(refresh, s.BeginRefreshAt.Time, "must be at least 10 minutes after status.notBefore")
	case s.BeginRefreshAt.After(s.NotAfter.Add(-refreshMargin)):
		return bad(refresh, s.BeginRefreshAt.Time, "must be at least 10 minutes before status.notAfter")
	}
	return nil
}

// chain reads certificates in PEM, and answers with the first.
func chain(text []byte) (leaf *x509.Certificate, why string) {
	for {
		var b *pem.Block
		b, text = pem.Decode(text)
		switch {
		case b == nil && leaf == nil:
			return nil, "issued certificate chain must contain at least one certificate"
		case b == nil:
			return leaf, ""
		case b.Type != "CERTIFICATE":
			return nil, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks"
		}
		c, err := x509.ParseCertificate(b.Bytes)
		switch {
		case err != nil && leaf == nil:
			return nil, "leaf certificate does not parse as valid X.509"
		case err != nil:
			return nil, "intermediate certificate does not parse as valid X.509"
		}
		if leaf == nil {
			leaf = c
		}
	}
}

// requestedKey is the public key that a request is for.
func requestedKey(s *certificatesv1beta1.PodCertificateRequestSpec) (crypto.PublicKey, error) {
	if len(s.StubPKCS10Request) == 0 {
		key, err := x509.ParsePKIXPublicKey(s.PKIXPublicKey) //nolint:staticcheck // deprecated, still taken
		if err != nil {
			return nil, errors.New("must be a valid PKIX-serialized public key")
		}
		return key, nil
	}
	r, err := x509.ParseCertificateRequest(s.StubPKCS10Request)
	if err != nil {
		return nil, errors.New("must be a valid PKCS#10 CSR")
	}
	return r.PublicKey, nil
}
