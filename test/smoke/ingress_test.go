package smoke

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/internal/need"
)

const ingressManifest = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  namespace: smoke
  annotations: {nginx.ingress.kubernetes.io/rewrite-target: /$1, nginx.ingress.kubernetes.io/ssl-redirect: "false", knarr.io/http3: "true"}
spec:
  tls: [{hosts: [web.smoke.example], secretName: web-tls}]
  rules:
  - host: web.smoke.example
    http:
      paths: [{path: /app/(.*), pathType: ImplementationSpecific, backend: {service: {name: web, port: {number: 80}}}}]
`

// ingress opens the cluster to the outside: an Ingress is answered at the node's address
// on port 80, and on port 443 with its certificate, and no request fails while what is
// behind it is replaced, and none but the one under way when the server itself is killed. With it the ports are closed again.
func ingress(t *testing.T, c *cluster) {
	if conn, err := net.DialTimeout("tcp", "127.0.0.1:80", time.Second); err == nil {
		conn.Close()
		need.Skip(t, "port 80 of this machine is taken by another program")
	}
	roots := c.ingressSecret(t)
	c.apply(ingressManifest)
	var address string
	c.wait("the Ingress' address", 15*time.Second, func(ctx context.Context) (bool, error) {
		ing, err := c.client.NetworkingV1().Ingresses("smoke").Get(ctx, "web", metav1.GetOptions{})
		if err != nil || len(ing.Status.LoadBalancer.Ingress) == 0 {
			return false, err
		}
		address = ing.Status.LoadBalancer.Ingress[0].IP
		return true, nil
	})
	dial := func(ctx context.Context, network, to string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(to)
		return (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, network, net.JoinHostPort(address, port))
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	ask := func(url string) error {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && (resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "version=")) {
			err = fmt.Errorf("%s: %s", resp.Status, body)
		}
		return err
	}
	for _, url := range []string{"http://web.smoke.example/app/", "https://web.smoke.example/app/"} {
		c.wait(url, 15*time.Second, func(context.Context) (bool, error) { err := ask(url); return err == nil, err })
	}
	advertised(t, client)
	quic3, byHTTP3 := overHTTP3(address, roots)
	defer quic3.Close()
	c.wait("HTTP/3", 15*time.Second, byHTTP3)
	for _, under := range []struct {
		name    string
		allowed int64 // failures: of what is under way when a process is killed
		change  func()
	}{
		{"a rolling update", 0, func() {
			c.kubectl("-n", "smoke", "patch", "deployment", "web", "--type=json", "-p", `[{"op":"replace","path":"/spec/template/spec/containers/0/args","value":["-version=9"]}]`)
			c.kubectl("-n", "smoke", "rollout", "status", "deployment/web", "--timeout=120s")
		}},
		{"the server killed", 1, func() {
			_ = c.cmd.Process.Kill()
			<-c.ended
			c.start()
			c.wait("/readyz", 10*time.Second, func(ctx context.Context) (bool, error) { return c.readyz(ctx), nil })
			c.kubectl("-n", "smoke", "rollout", "status", "deployment/web", "--timeout=60s")
			time.Sleep(2 * time.Second) // requests go on for a while
		}},
	} {
		name, change := under.name, under.change
		var asked, failed atomic.Int64
		asking, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for asking.Err() == nil {
				if err := ask([]string{"http://web.smoke.example/app/", "https://web.smoke.example/app/"}[asked.Add(1)%2]); err != nil {
					failed.Add(1)
					t.Logf("under %s: %v", name, err)
				}
			}
		}()
		change()
		end()
		<-ended
		if asked.Load() < 20 || failed.Load() > under.allowed {
			t.Errorf("%s: %d asked, %d failed", name, asked.Load(), failed.Load())
		}
		t.Logf("%s: %d asked, %d failed", name, asked.Load(), failed.Load())
	}
	c.wait("HTTP/3 of the process after the one that was killed", 15*time.Second, byHTTP3)
	c.kubectl("-n", "smoke", "delete", "ingress/web", "secret/web-tls")
	c.wait("the port to be closed", 15*time.Second, func(ctx context.Context) (bool, error) {
		conn, err := dial(ctx, "tcp", ":80")
		if err == nil {
			conn.Close()
			return false, errors.New("port 80 is still open")
		}
		return true, nil
	})
}

// advertised checks that clients are told of HTTP/3.
func advertised(t *testing.T, client *http.Client) {
	answer, err := client.Get("https://web.smoke.example/app/")
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if want := `h3=":443"; ma=86400`; answer.Header.Get("Alt-Svc") != want {
		t.Errorf("clients are told %q of HTTP/3, want %q", answer.Header.Get("Alt-Svc"), want)
	}
}

// overHTTP3 asks by HTTP/3, and reports whether the application answered.
func overHTTP3(address string, roots *x509.CertPool) (*http3.Transport, func(context.Context) (bool, error)) {
	transport := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, Dial: func(ctx context.Context, _ string, tls *tls.Config, config *quic.Config) (*quic.Conn, error) {
		return quic.DialAddrEarly(ctx, net.JoinHostPort(address, "443"), tls, config)
	}}
	client := &http.Client{Timeout: 5 * time.Second, Transport: transport}
	return transport, func(context.Context) (bool, error) {
		answer, err := client.Get("https://web.smoke.example/app/")
		if err != nil {
			return false, err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return err == nil && strings.Contains(string(body), "version="), err
	}
}

// ingressSecret makes the Secret of the Ingress' host, and returns who believes it.
func (c *cluster) ingressSecret(t *testing.T) *x509.CertPool {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"web.smoke.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "web-tls"}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}}
	if _, err := c.client.CoreV1().Secrets("smoke").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	return roots
}
