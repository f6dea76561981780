package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"knarr/internal/references"
)

// A fakeAuthority gives certificates of its own.
type fakeAuthority struct{ orders []string }

func (*fakeAuthority) Thumbprint(context.Context) (string, error) { return "thumbprint", nil }

func (a *fakeAuthority) Issue(_ context.Context, hosts []string) (chain, key []byte, err error) {
	a.orders = append(a.orders, strings.Join(hosts, ","))
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "issued"}, DNSNames: hosts, NotBefore: time.Now(), NotAfter: time.Now().Add(90 * 24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, of, of, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	text, err := x509.MarshalECPrivateKey(private)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), err
}

func withACME(ing *networkingv1.Ingress) {
	ing.Annotations = map[string]string{references.ACMEAnnotation: "true"}
	ing.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{ing.Spec.Rules[0].Host}, SecretName: ing.Name + "-tls"}}
}

// An Ingress that asks for it gets its certificate, which its node shows, and the node
// answers the challenges; both with no more rights than that needs.
func TestCertificates(t *testing.T) {
	authority := &fakeAuthority{}
	inWorldWith(t, func(s *Status) { s.authority = authority }, func(w *testWorld) {
		w.service("web")
		w.ingress("web", "www.knarr.dev", "web", withACME)
		w.ingress("inside", "db.local", "web", withACME)
		time.Sleep(time.Minute)
		secret, err := w.client.CoreV1().Secrets("default").Get(w.ctx, "web-tls", metav1.GetOptions{})
		w.no(err)
		if secret.Type != corev1.SecretTypeTLS || len(authority.orders) != 1 || authority.orders[0] != "www.knarr.dev" {
			t.Errorf("a Secret of type %s, orders %q", secret.Type, authority.orders)
		}
		if got := w.plane.certificate("www.knarr.dev"); got != "issued" {
			t.Errorf("the node shows the certificate %q", got)
		}
		w.plane.mu.Lock()
		plain := w.plane.config.Listeners[0]
		w.plane.mu.Unlock()
		if plain.Challenge != "thumbprint" || len(plain.ChallengeHosts) != 2 {
			t.Errorf("challenges of %q are answered by %q", plain.ChallengeHosts, plain.Challenge)
		}
		events := w.events("web") + w.events("inside")
		if !strings.Contains(events, "CertificateIssued") || !strings.Contains(events, "db.local is no public name") {
			t.Error(events)
		}
		// It may apply those Secrets, and no other one.
		server, err := kubernetes.NewForConfig(w.api.Config(serverUser))
		w.no(err)
		for name, allowed := range map[string]bool{"web-tls": true, "other": false} {
			_, err := server.CoreV1().Secrets("default").Apply(w.ctx, applycorev1.Secret(name, "default"), metav1.ApplyOptions{FieldManager: "test"})
			if apierrors.IsForbidden(err) == allowed {
				t.Errorf("Secret %s: %v", name, err)
			}
		}
		node, err := kubernetes.NewForConfig(w.api.Config(nodeUser))
		w.no(err)
		if _, err := node.CoreV1().Secrets("default").Apply(w.ctx, applycorev1.Secret("web-tls", "default"), metav1.ApplyOptions{FieldManager: "test"}); !apierrors.IsForbidden(err) {
			t.Errorf("a node applies a Secret: %v", err)
		}
	})
}

func TestCertificatesWithoutAuthority(t *testing.T) {
	inWorld(t, false, func(w *testWorld) {
		w.service("web")
		w.ingress("web", "www.knarr.dev", "web", withACME)
		time.Sleep(time.Minute)
		if events := w.events("web"); !strings.Contains(events, "no authority is configured") {
			t.Error(events)
		}
	})
}
