package registry

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func certificate(t *testing.T, authority bool) string {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: authority, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, public, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// TestTrustBundleValidation has upstream's messages (ValidateClusterTrustBundle).
func TestTrustBundleValidation(t *testing.T) {
	root, leaf := certificate(t, true), certificate(t, false)
	headers := strings.Replace(root, "\n", "\nkey: value\n\n", 1)
	of := func(name, signer, text string) trustBundle {
		return &certificatesv1beta1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text}}
	}
	for name, c := range map[string]struct {
		now, old trustBundle
		want     string
	}{
		"good":            {now: of("a", "", "text before\n"+root+"text behind\n")},
		"of a signer":     {now: of("k8s.io:foo:bar", "k8s.io/foo", root)},
		"colon":           {now: of("k8s.io:bar:foo", "", root), want: `metadata.name: Invalid value: "k8s.io:bar:foo": ClusterTrustBundle without signer name must not have ":" in its name`},
		"of another":      {now: of("look:a:b", "k8s.io/foo", root), want: `metadata.name: Invalid value: "look:a:b": ClusterTrustBundle for signerName k8s.io/foo must be named with prefix k8s.io:foo:`},
		"no signer's":     {now: of("bad:foo", "bad", root), want: `spec.signerName: Invalid value: "bad": must be a fully qualified domain and path of the form 'example.com/signer-name'`},
		"empty":           {now: of("a", "", ""), want: `spec.trustBundle: Invalid value: "<value omitted>": at least one trust anchor must be provided`},
		"twice":           {now: of("a", "", root+root), want: `spec.trustBundle: Invalid value: "<value omitted>": duplicate trust anchor (indices [0 1])`},
		"leaf":            {now: of("a", "", root+leaf), want: `spec.trustBundle: Invalid value: "<value omitted>": entry 1 does not have the CA bit set`},
		"headers":         {now: of("a", "", headers), want: `spec.trustBundle: Invalid value: "<value omitted>": entry 0 has PEM block headers`},
		"type":            {now: of("a", "", strings.ReplaceAll(root, "CERTIFICATE", "NONESUCH")), want: `spec.trustBundle: Invalid value: "<value omitted>": entry 0 has bad block type: NONESUCH`},
		"garbage":         {now: of("a", "", "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"), want: `spec.trustBundle: Invalid value: "<value omitted>": entry 0 does not parse as X.509`},
		"long":            {now: of("a", "", strings.Repeat("x", 1<<20+1)), want: `spec.trustBundle: Too long: may not be more than 1048576 bytes`},
		"stored":          {now: of("a", "", leaf), old: of("a", "", leaf)},
		"signer changed":  {now: of("k8s.io:foo:bar", "k8s.io/foo", root), old: of("k8s.io:foo:bar", "k8s.io/fooo", root), want: `spec.signerName: Invalid value: "k8s.io/foo": field is immutable`},
		"changed to leaf": {now: of("a", "", leaf), old: of("a", "", root), want: `spec.trustBundle: Invalid value: "<value omitted>": entry 0 does not have the CA bit set`},
	} {
		errs := validateTrustBundle(t.Context(), c.now, c.old)
		for _, msg := range bundleNameRule(c.now.Spec.SignerName)(c.now.Name, false) {
			if c.old == nil && c.now.Spec.SignerName != "bad" {
				errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), c.now.Name, msg))
			}
		}
		got := ""
		if err := errs.ToAggregate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}
