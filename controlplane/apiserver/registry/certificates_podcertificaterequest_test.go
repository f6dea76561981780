package registry

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func stubOf(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func curveKey(t *testing.T, c elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func requestFor(t *testing.T, key crypto.Signer) podCertificate {
	return &certificatesv1beta1.PodCertificateRequest{Spec: certificatesv1beta1.PodCertificateRequestSpec{
		SignerName: "example.com/signer", PodName: "p", PodUID: "p-uid", ServiceAccountName: "sa", ServiceAccountUID: "sa-uid",
		NodeName: "n", NodeUID: "n-uid", MaxExpirationSeconds: new(int32(86400)), StubPKCS10Request: stubOf(t, key)}}
}

func faultText(errs field.ErrorList) string {
	if err := errs.ToAggregate(); err != nil {
		return err.Error()
	}
	return ""
}

// TestPodCertificateValidation has upstream's messages (ValidatePodCertificateRequestCreate).
func TestPodCertificateValidation(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p256 := curveKey(t, elliptic.P256())
	public, err := x509.MarshalPKIXPublicKey(p256.Public())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("p-uid"))
	proof, err := ecdsa.SignASN1(rand.Reader, p256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	type spec = *certificatesv1beta1.PodCertificateRequestSpec
	for name, c := range map[string]struct {
		change func(spec)
		want   string
	}{
		"good":       {func(spec) {}, ""},
		"older form": {func(s spec) { s.StubPKCS10Request, s.PKIXPublicKey, s.ProofOfPossession = nil, public, proof }, ""},
		"wrong proof": {func(s spec) {
			s.StubPKCS10Request, s.PKIXPublicKey, s.ProofOfPossession, s.PodUID = nil, public, proof, "other"
		},
			"spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature"},
		"both forms": {func(s spec) { s.PKIXPublicKey, s.ProofOfPossession = public, proof },
			"spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set"},
		"no time":   {func(s spec) { s.MaxExpirationSeconds = nil }, "spec.maxExpirationSeconds: Required value: must be set"},
		"too short": {func(s spec) { s.MaxExpirationSeconds = new(int32(3599)) }, "spec.maxExpirationSeconds: Invalid value: 3599: must be in the range [3600, 7862400]"},
		"too long of a signer of Kubernetes'": {func(s spec) { s.SignerName, s.MaxExpirationSeconds = "kubernetes.io/x", new(int32(86401)) },
			"spec.maxExpirationSeconds: Invalid value: 86401: must be in the range [3600, 86400]"},
		"no UIDs": {func(s spec) { s.PodUID, s.NodeUID = "", "" }, `[spec.podUID: Invalid value: "": must not be empty, spec.nodeUID: Invalid value: "": must not be empty]`},
		"garbage": {func(s spec) { s.StubPKCS10Request = []byte("x") }, "spec.stubPKCS10Request: Invalid value: must be a valid PKCS#10 CSR"},
		"curve": {func(s spec) { s.StubPKCS10Request = stubOf(t, curveKey(t, elliptic.P224())) },
			`spec.stubPKCS10Request: Invalid value: "curve P-224": elliptic public keys must use curve P256, P384, or P521`},
		"annotation": {func(s spec) { s.UnverifiedUserAnnotations = map[string]string{"plain": "x"} },
			`spec.unverifiedUserAnnotations: Invalid value: "plain": must be a domain-prefixed key (such as "acme.io/foo")`},
	} {
		r := requestFor(t, key)
		c.change(&r.Spec)
		if got := faultText(validatePodCertificate(t.Context(), r, nil)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
	old, r := requestFor(t, key), requestFor(t, key)
	old.Spec.StubPKCS10Request = r.Spec.StubPKCS10Request
	r.Spec.PodName = "q"
	if got := faultText(validatePodCertificate(t.Context(), r, old)); !strings.HasSuffix(got, "field is immutable") {
		t.Errorf("changed: %s", got)
	}
}

// TestPodCertificateStatus has upstream's messages (ValidatePodCertificateRequestStatusUpdate).
func TestPodCertificateStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now().Truncate(time.Second)
		sign := func(public crypto.PublicKey, life time.Duration) string {
			cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.Add(life)}
			der, err := x509.CreateCertificate(rand.Reader, cert, cert, public, key)
			if err != nil {
				t.Fatal(err)
			}
			return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		}
		condition := func(kind string) []metav1.Condition {
			return []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: metav1.NewTime(now)}}
		}
		at := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(d))) }
		type status = *certificatesv1beta1.PodCertificateRequestStatus
		for name, c := range map[string]struct {
			before, change func(status)
			want           string
		}{
			"issued":      {nil, func(status) {}, ""},
			"other's key": {nil, func(s status) { s.CertificateChain = sign(curveKey(t, elliptic.P256()).Public(), 12*time.Hour) }, "leaf certificate was not issued to the requested public key"},
			"no times":    {nil, func(s status) { s.NotBefore = nil }, "status.notBefore: Required value: must be present and consistent with the issued certificate"},
			"other time":  {nil, func(s status) { s.NotAfter = at(13 * time.Hour) }, "must be set to the NotAfter time encoded in the leaf certificate"},
			"too short": {nil, func(s status) {
				s.CertificateChain, s.NotAfter = sign(key.Public(), 59*time.Minute), at(59*time.Minute)
			}, "leaf certificate lifetime must be >= 1 hour"},
			"too long": {nil, func(s status) { s.CertificateChain, s.NotAfter = sign(key.Public(), 25*time.Hour), at(25*time.Hour) }, "leaf certificate lifetime must be <= spec.maxExpirationSeconds (86400)"},
			"early":    {nil, func(s status) { s.BeginRefreshAt = at(9 * time.Minute) }, "must be at least 10 minutes after status.notBefore"},
			"late":     {nil, func(s status) { s.BeginRefreshAt = at(12*time.Hour - 9*time.Minute) }, "must be at least 10 minutes before status.notAfter"},
			"no chain": {nil, func(s status) { s.CertificateChain = "x" }, "issued certificate chain must contain at least one certificate"},
			"bad second": {nil, func(s status) {
				s.CertificateChain += "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"
			}, "intermediate certificate does not parse as valid X.509"},
			"unknown":      {nil, func(s status) { s.Conditions = condition("Ready") }, `supported values: "Denied", "Failed", "Issued"`},
			"two":          {nil, func(s status) { s.Conditions = append(s.Conditions, condition("Denied")...) }, `There may be at most one condition with type "Issued", "Denied", or "Failed"`},
			"false":        {nil, func(s status) { s.Conditions[0].Status = metav1.ConditionFalse }, `supported values: "True"`},
			"denied":       {nil, func(s status) { *s = certificatesv1beta1.PodCertificateRequestStatus{Conditions: condition("Denied")} }, ""},
			"denied, with": {nil, func(s status) { s.Conditions = condition("Denied") }, "non-condition status fields must be empty when denying or failing the PodCertificateRequest"},
			"pending":      {nil, func(s status) { s.Conditions = nil }, `status is immutable unless transitioning to "Issued", "Denied", or "Failed"`},
			"ended":        {func(s status) { s.Conditions = condition("Failed") }, func(status) {}, "immutable after PodCertificateRequest is issued, denied, or failed"},
		} {
			old := requestFor(t, key)
			if c.before != nil {
				c.before(&old.Status)
			}
			r := old.DeepCopy()
			r.Status = certificatesv1beta1.PodCertificateRequestStatus{Conditions: condition("Issued"), CertificateChain: sign(key.Public(), 12*time.Hour),
				NotBefore: at(0), NotAfter: at(12 * time.Hour), BeginRefreshAt: at(6 * time.Hour)}
			c.change(&r.Status)
			if got := faultText(validatePodCertificateStatus(t.Context(), r, old)); got != c.want && (c.want == "" || !strings.Contains(got, c.want)) {
				t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
			}
		}
	})
}
