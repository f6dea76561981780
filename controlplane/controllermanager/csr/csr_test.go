package csr

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// newAuthority is valid until end.
func newAuthority(t *testing.T, end time.Time) (*x509.Certificate, crypto.Signer) {
	key := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: end.Add(-1e6 * time.Hour),
		NotAfter: end, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return ca, key
}

func request(t *testing.T, want x509.CertificateRequest) []byte {
	der, err := x509.CreateCertificateRequest(rand.Reader, &want, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

var node = pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}}

func TestShapes(t *testing.T) {
	const ds, ke, ca, sa = certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth
	address := []net.IP{net.IPv4(127, 0, 0, 1)}
	for name, c := range map[string]struct {
		signer string
		r      x509.CertificateRequest
		usages []certificatesv1.KeyUsage
		want   string
	}{
		"client":             {certificatesv1.KubeAPIServerClientSignerName, x509.CertificateRequest{}, []certificatesv1.KeyUsage{ca, ds}, ""},
		"client serves":      {certificatesv1.KubeAPIServerClientSignerName, x509.CertificateRequest{}, []certificatesv1.KeyUsage{sa}, "invalid usage for client certificate: server auth"},
		"client without":     {certificatesv1.KubeAPIServerClientSignerName, x509.CertificateRequest{}, []certificatesv1.KeyUsage{ds}, "missing required usage for client certificate: client auth"},
		"kubelet":            {certificatesv1.KubeAPIServerClientKubeletSignerName, x509.CertificateRequest{Subject: node}, []certificatesv1.KeyUsage{ds, ca}, ""},
		"kubelet, RSA":       {certificatesv1.KubeAPIServerClientKubeletSignerName, x509.CertificateRequest{Subject: node}, []certificatesv1.KeyUsage{ke, ds, ca}, ""},
		"kubelet, twice":     {certificatesv1.KubeAPIServerClientKubeletSignerName, x509.CertificateRequest{Subject: node}, []certificatesv1.KeyUsage{ds, ds}, "usages did not match [client auth digital signature key encipherment]"},
		"kubelet, more":      {certificatesv1.KubeAPIServerClientKubeletSignerName, x509.CertificateRequest{Subject: node}, []certificatesv1.KeyUsage{ds, ca, sa}, "usages did not match [client auth digital signature key encipherment]"},
		"kubelet of masters": {certificatesv1.KubeAPIServerClientKubeletSignerName, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes", "system:masters"}}}, []certificatesv1.KeyUsage{ds, ca}, "subject organization is not system:nodes"},
		"kubelet's name":     {certificatesv1.KubeAPIServerClientKubeletSignerName, x509.CertificateRequest{Subject: pkix.Name{CommonName: "n", Organization: node.Organization}}, []certificatesv1.KeyUsage{ds, ca}, "subject common name does not begin with system:node:"},
		"kubelet's address":  {certificatesv1.KubeAPIServerClientKubeletSignerName, x509.CertificateRequest{Subject: node, IPAddresses: address}, []certificatesv1.KeyUsage{ds, ca}, "IP subjectAltNames are not allowed"},
		"serving":            {certificatesv1.KubeletServingSignerName, x509.CertificateRequest{Subject: node, IPAddresses: address}, []certificatesv1.KeyUsage{ds, sa}, ""},
		"serving nowhere":    {certificatesv1.KubeletServingSignerName, x509.CertificateRequest{Subject: node}, []certificatesv1.KeyUsage{ds, sa}, "DNS or IP subjectAltName is required"},
		"serving as client":  {certificatesv1.KubeletServingSignerName, x509.CertificateRequest{Subject: node, IPAddresses: address}, []certificatesv1.KeyUsage{ds, ca}, "usages did not match [digital signature key encipherment server auth]"},
		"legacy":             {legacyUnknown, x509.CertificateRequest{}, []certificatesv1.KeyUsage{sa}, ""},
	} {
		got := ""
		if err := shapes[c.signer](&c.r, c.usages); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestSign(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ca, key := newAuthority(t, now.Add(1000*time.Hour))
	r, err := parse(request(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}, DNSNames: []string{"a.example"}}))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		life time.Duration
		now  time.Time
		end  time.Time // zero: refused
	}{
		"short":             {time.Hour, now, now.Add(time.Hour)},
		"long":              {100 * time.Hour, now, now.Add(100*time.Hour - backdate)},
		"than authority":    {2000 * time.Hour, now, ca.NotAfter},
		"authority expired": {time.Hour, ca.NotAfter, time.Time{}},
	} {
		text, err := sign(r, []certificatesv1.KeyUsage{"client auth", "digital signature", "client auth"}, c.life, c.now, ca, key)
		if c.end.IsZero() {
			if err == nil {
				t.Errorf("%s: signed", name)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		got, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if !got.NotAfter.Equal(c.end) || !got.NotBefore.Equal(c.now.Add(-backdate)) || got.Subject.CommonName != "jane" || got.IsCA ||
			got.DNSNames[0] != "a.example" || got.KeyUsage != x509.KeyUsageDigitalSignature || len(got.ExtKeyUsage) != 1 || got.CheckSignatureFrom(ca) != nil {
			t.Errorf("%s: until %v, %+v", name, got.NotAfter, got.Subject)
		}
	}
	if _, err := sign(r, []certificatesv1.KeyUsage{"nosuch"}, time.Hour, now, ca, key); err == nil || err.Error() != `unrecognized usage values: ["nosuch"]` {
		t.Errorf("unknown usage: %v", err)
	}
}

func TestLife(t *testing.T) {
	for asked, want := range map[int32]time.Duration{60: 10 * time.Minute, 3600: time.Hour, 1 << 30: 24 * time.Hour} {
		if got := life(&asked, 24*time.Hour); got != want {
			t.Errorf("%d s: %v, want %v", asked, got, want)
		}
	}
	if life(nil, time.Hour) != time.Hour {
		t.Error("not the longest by default")
	}
}

func TestDeadline(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	ca, _ := newAuthority(t, now.Add(time.Minute))
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
	condition := func(c certificatesv1.RequestConditionType) []certificatesv1.CertificateSigningRequestCondition {
		return []certificatesv1.CertificateSigningRequestCondition{{Type: c, Status: corev1.ConditionTrue, LastUpdateTime: metav1.NewTime(now)}}
	}
	for name, c := range map[string]struct {
		status certificatesv1.CertificateSigningRequestStatus
		want   time.Duration
	}{
		"pending":  {certificatesv1.CertificateSigningRequestStatus{}, 24 * time.Hour},
		"approved": {certificatesv1.CertificateSigningRequestStatus{Conditions: condition(certificatesv1.CertificateApproved)}, 24 * time.Hour},
		"denied":   {certificatesv1.CertificateSigningRequestStatus{Conditions: condition(certificatesv1.CertificateDenied)}, time.Hour},
		"failed":   {certificatesv1.CertificateSigningRequestStatus{Conditions: condition(certificatesv1.CertificateFailed)}, time.Hour},
		"issued":   {certificatesv1.CertificateSigningRequestStatus{Conditions: condition(certificatesv1.CertificateApproved), Certificate: []byte("not one")}, time.Hour},
		"expires":  {certificatesv1.CertificateSigningRequestStatus{Conditions: condition(certificatesv1.CertificateApproved), Certificate: certificate}, time.Minute},
	} {
		end, ok := deadline(&certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now)}, Status: c.status})
		if !ok || !end.Equal(now.Add(c.want)) {
			t.Errorf("%s: %v %v, want in %v", name, end.Sub(now), ok, c.want)
		}
	}
	if _, ok := deadline(&certificatesv1.CertificateSigningRequest{}); ok {
		t.Error("a request of no age goes")
	}
}
