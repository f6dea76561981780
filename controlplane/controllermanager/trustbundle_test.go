package controllermanager

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/controllermanager/trustbundle"
	"knarr/internal/apitest"
	"knarr/internal/features"
)

// TestTrustBundle: the API server's authority is in one bundle of its signer, whatever is
// done to that; others of the signer go, and those of other signers stay.
func TestTrustBundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		on := features.Set{features.TrustBundles: true}
		s, stop := apitest.New(t, func(c *apiserver.Config) {
			c.APIs, c.Features = []schema.GroupVersion{certificatesv1beta1.SchemeGroupVersion}, on
		})
		defer stop()
		ca := anchor(t)
		inClusterOn(t, s, func(s *apitest.Server) Config {
			cfg := config(s, trustbundle.Name)
			cfg.Features, cfg.RootCA = on, []byte(ca)
			return cfg
		}, func(c *cluster) {
			bundles := c.client.CertificatesV1beta1().ClusterTrustBundles()
			make := func(name, signer string) {
				_, err := bundles.Create(c.ctx, &certificatesv1beta1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name},
					Spec: certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: ca}}, metav1.CreateOptions{})
				c.no(err)
			}
			make("kubernetes.io:kube-apiserver-serving:old", trustbundle.Signer)
			make("example.com:signer:theirs", "example.com/signer")
			time.Sleep(time.Minute)
			check := func(what string) *certificatesv1beta1.ClusterTrustBundle {
				l, err := bundles.List(c.ctx, metav1.ListOptions{})
				c.no(err)
				if len(l.Items) != 2 || l.Items[0].Name != "example.com:signer:theirs" || !strings.HasPrefix(l.Items[1].Name, "kubernetes.io:kube-apiserver-serving:") ||
					l.Items[1].Spec.TrustBundle != ca {
					c.Fatalf("%s: %+v", what, l.Items)
				}
				return &l.Items[1]
			}
			b := check("at first")
			c.no(bundles.Delete(c.ctx, b.Name, metav1.DeleteOptions{}))
			time.Sleep(time.Minute)
			again := check("deleted")
			if again.Name != b.Name {
				c.Errorf("named %s, was %s", again.Name, b.Name)
			}
			again.Spec.TrustBundle += "# changed\n"
			_, err := bundles.Update(c.ctx, again, metav1.UpdateOptions{})
			c.no(err)
			time.Sleep(time.Minute)
			check("changed")
		})
	})
}

// anchor is the certificate of one, in PEM.
func anchor(t *testing.T) string {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, public, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
