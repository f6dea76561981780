package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
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
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"knarr/internal/need"
	"knarr/internal/programs"
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

// So does a Gateway, whose listener at port 80 answers the challenges.
func TestCertificatesOfGateways(t *testing.T) {
	if _, err := programs.Read(programs.Definitions); errors.Is(err, programs.ErrMissing) {
		need.Skip(t, err)
	}
	authority := &fakeAuthority{}
	inWorldWith(t, func(s *Status) { s.authority = authority }, func(w *testWorld) {
		w.node("n1", "10.0.0.1")
		api, err := newAPIClient(w.api.Config())
		w.no(err)
		time.Sleep(time.Minute) // the kinds are installed
		g := &gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g", Annotations: map[string]string{references.ACMEAnnotation: "true"}}, Spec: gw.GatewaySpec{GatewayClassName: ClassName, Listeners: []gw.Listener{
			{Name: "http", Port: 80, Protocol: gw.HTTPProtocolType},
			{Name: "https", Port: 443, Protocol: gw.HTTPSProtocolType, Hostname: new(gw.Hostname("www.knarr.dev")), TLS: &gw.ListenerTLSConfig{CertificateRefs: []gw.SecretObjectReference{{Name: "www-tls"}}}},
			{Name: "any", Port: 444, Protocol: gw.HTTPSProtocolType, TLS: &gw.ListenerTLSConfig{CertificateRefs: []gw.SecretObjectReference{{Name: "any-tls"}}}},
		}}}
		w.no(api.rest.Post().Namespace("default").Resource("gateways").Body(g).Do(w.ctx).Error())
		time.Sleep(time.Minute)
		if secret, err := w.client.CoreV1().Secrets("default").Get(w.ctx, "www-tls", metav1.GetOptions{}); err != nil || secret.Type != corev1.SecretTypeTLS {
			t.Errorf("the Secret: %v", err)
		}
		if len(authority.orders) != 1 || authority.orders[0] != "www.knarr.dev" {
			t.Errorf("orders %q", authority.orders)
		}
		w.plane.mu.Lock()
		var challenges []string
		for _, l := range w.plane.config.Listeners {
			if l.Challenge != "" {
				challenges = append(challenges, fmt.Sprint(l.PublicPort, l.Challenge, l.ChallengeHosts))
			}
		}
		w.plane.mu.Unlock()
		if len(challenges) != 1 || challenges[0] != "80thumbprint[www.knarr.dev]" {
			t.Errorf("challenges %q", challenges)
		}
		events := w.events("g")
		if !strings.Contains(events, "CertificateIssued") || !strings.Contains(events, "listener any: it names no host") {
			t.Error(events)
		}
		// It may apply those Secrets, and no other one.
		server, err := kubernetes.NewForConfig(w.api.Config(serverUser))
		w.no(err)
		for name, allowed := range map[string]bool{"www-tls": true, "other": false} {
			_, err := server.CoreV1().Secrets("default").Apply(w.ctx, applycorev1.Secret(name, "default"), metav1.ApplyOptions{FieldManager: "test"})
			if apierrors.IsForbidden(err) == allowed {
				t.Errorf("Secret %s: %v", name, err)
			}
		}
	})
}
