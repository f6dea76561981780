// Package acme runs a cluster beside Pebble, the test server of ACME's authors: an Ingress and
// a Gateway ask for certificates, get them, and show them. It reads the built knarr, and removes
// everything again.
package acme

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

const binary = "../../bin/knarr"

const manifest = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: good, annotations: {knarr.io/acme: "true"}}
spec:
  tls: [{hosts: [www.knarr.test, alt.knarr.test], secretName: good-tls}]
  rules:
  - {host: www.knarr.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}
  - {host: alt.knarr.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: lost, annotations: {knarr.io/acme: "true"}}
spec:
  tls: [{hosts: [lost.knarr.test], secretName: lost-tls}]
  rules: [{host: lost.knarr.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
`

const ofGateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: g, annotations: {knarr.io/acme: "true"}}
spec:
  gatewayClassName: knarr
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, hostname: gw.knarr.test, tls: {certificateRefs: [{name: gw-tls}]}}
`

// A pebble is the authority.
type pebble struct {
	directory, ca string
	at            atomic.Pointer[net.IP] // of all hosts
	roots         *x509.CertPool         // of what it issues
}

// authority runs Pebble until the test ends. It finds all hosts at one address, but for
// those that begin with lost.
func authority(t *testing.T, at, dir string) *pebble {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "20") // of a hundred, so that clients try again
	p := &pebble{ca: filepath.Join(dir, "pebble.pem"), roots: x509.NewCertPool()}
	p.finds(at)
	names, err := net.Listen("tcp", "127.0.0.1:0") // as Pebble asks
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{Listener: names, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		if name := q.Question[0].Name; strings.HasPrefix(name, "lost.") {
			m.Rcode = dns.RcodeNameError
		} else if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: *p.at.Load()}}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })

	logger := log.New(io.Discard, "", 0)
	store := db.NewMemoryStore()
	issuer := ca.New(logger, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {}})
	web := wfe.New(logger, store, va.New(logger, 80, 443, false, names.Addr().String(), store), issuer, []string{"pebble.test"}, false, false, 1, 1)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	https := &http.Server{Handler: web.Handler()}
	go func() { _ = https.Serve(l) }()
	t.Cleanup(func() { _ = https.Close() })
	p.directory = "https://" + l.Addr().String() + wfe.DirectoryPath
	if err := os.WriteFile(p.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	p.roots.AddCert(issuer.GetRootCert(0).Cert)
	return p
}

// finds says where all hosts are.
func (p *pebble) finds(at string) { p.at.Store(new(net.ParseIP(at))) }

// A cluster is a running knarr.
type cluster struct {
	t   *testing.T
	dir string
}

func start(t *testing.T, base string, p *pebble) *cluster {
	t.Helper()
	c := &cluster{t, filepath.Join(base, "data")}
	out, err := os.Create(filepath.Join(base, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "server", "--data-dir", c.dir, "--config", "/dev/null", "--https-listen-port", fmt.Sprint(freePort(t)), "--kubelet-port", fmt.Sprint(freePort(t)),
		"--cluster-cidr", "10.154.0.0/16", "--service-cidr", "10.155.0.0/16", "--node-name", "acme", "--service-node-port-range", "32701-32760",
		"--acme-directory", p.directory, "--acme-email", "ops@knarr.test", "--acme-ca", p.ca)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if out, err := exec.Command(binary, "down", "--data-dir", c.dir, "--purge").CombinedOutput(); err != nil {
			t.Errorf("knarr down: %v\n%s", err, out)
		}
		if t.Failed() {
			b, _ := os.ReadFile(out.Name())
			t.Logf("the end of the server's log:\n%s", b[max(0, len(b)-4000):])
		}
	})
	if out, err := exec.Command(binary, "wait", "--data-dir", c.dir).CombinedOutput(); err != nil {
		t.Fatalf("knarr wait: %v\n%s", err, out)
	}
	return c
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (c *cluster) kubectl(in string, args ...string) string {
	c.t.Helper()
	cmd := exec.Command(binary, append([]string{"kubectl"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.dir, "kubeconfig"))
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// until asks again and again.
func (c *cluster) until(what string, ok func() bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			c.t.Fatalf("%s: not within a minute; events:\n%s", what, c.kubectl("", "get", "events"))
		}
	}
}

func TestACME(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: make acme")
	}
	if conn, err := net.DialTimeout("tcp", "127.0.0.1:80", time.Second); err == nil {
		conn.Close()
		t.Skip("port 80 of this machine is taken by another program")
	}
	base, err := os.MkdirTemp("", "knarr-acme-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	p := authority(t, "127.0.0.1", base)
	c := start(t, base, p)
	c.kubectl(manifest, "apply", "-f", "-")
	for _, host := range []string{"www.knarr.test", "alt.knarr.test"} {
		c.until("the certificate of "+host, func() bool {
			conn, err := tls.Dial("tcp", "127.0.0.1:443", &tls.Config{ServerName: host, RootCAs: p.roots})
			if err != nil {
				return false
			}
			return conn.Close() == nil
		})
	}
	if got := c.kubectl("", "get", "secret", "good-tls", "-o", "jsonpath={.type} {.metadata.labels}"); !strings.Contains(got, "kubernetes.io/tls") || !strings.Contains(got, "knarr-acme") {
		t.Errorf("the Secret: %s", got)
	}
	c.until("an event of what cannot be validated", func() bool {
		return strings.Contains(c.kubectl("", "get", "events", "--field-selector", "involvedObject.name=lost", "-o", "jsonpath={.items[*].message}"), "the authority could not validate lost.knarr.test")
	})
	if got := c.kubectl("", "get", "events", "--field-selector", "involvedObject.name=good"); !strings.Contains(got, "CertificateIssued") {
		t.Error(got)
	}
	// Once its Secret is gone it is ordered again, by the same account.
	c.kubectl("", "delete", "secret", "good-tls")
	c.until("the certificate after its Secret was removed", func() bool {
		return strings.Contains(c.kubectl("", "get", "secrets", "-o", "name"), "secret/good-tls")
	})
	// A Gateway has its own address and ports, which Ingresses leave to it.
	c.kubectl("", "delete", "ingress", "--all")
	c.until("a node without Ingresses", func() bool {
		return !strings.Contains(c.kubectl("", "get", "services", "-A"), "knarr-ingress")
	})
	c.kubectl(ofGateway, "apply", "-f", "-")
	at := ""
	c.until("the Gateway's address", func() bool {
		at = c.kubectl("", "get", "gateway", "g", "-o", "jsonpath={.status.addresses[0].value}")
		return at != ""
	})
	p.finds(at)
	c.until("the certificate of gw.knarr.test", func() bool {
		conn, err := tls.Dial("tcp", net.JoinHostPort(at, "443"), &tls.Config{ServerName: "gw.knarr.test", RootCAs: p.roots})
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
	if got := c.kubectl("", "get", "events", "--field-selector", "involvedObject.kind=Gateway"); !strings.Contains(got, "CertificateIssued") {
		t.Error(got)
	}
}
