package storage_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/storage/storagetest"
	"knarr/internal/need"
	"knarr/internal/version"
)

// upstreamEtcd is where test/conformance puts upstream's programs.
func upstreamEtcd(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		need.Skip(t, "needs a directory for caches: set HOME: ", err)
	}
	path := filepath.Join(cache, "knarr", version.Kubernetes, "etcd")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no upstream etcd: make conformance builds it: %v", err)
	}
	return path
}

// signer makes certificates in a directory.
type signer struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func (s *signer) file(name string) string { return filepath.Join(s.dir, name) }

// issue writes name.crt and name.key; the first one, ca, signs the others.
func (s *signer) issue(t *testing.T, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, by := s.cert, s.key
	if parent == nil {
		leaf.IsCA, leaf.BasicConstraintsValid, leaf.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, by = leaf, key
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	if s.cert == nil {
		if s.cert, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		s.key = key
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(s.file(name+file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// port is free now.
func port(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// secured runs upstream's etcd, which wants a certificate of its clients.
func secured(t *testing.T, program string) (url string, s *signer) {
	t.Helper()
	s = &signer{dir: t.TempDir()}
	s.issue(t, "ca")
	s.issue(t, "server")
	s.issue(t, "client")
	url, peer := "https://"+port(t), "http://"+port(t)
	cmd := exec.Command(program, "--data-dir", t.TempDir(), "--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer,
		"--cert-file", s.file("server.crt"), "--key-file", s.file("server.key"), "--trusted-ca-file", s.file("ca.crt"), "--client-cert-auth", "--log-level", "fatal")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return url, s
}

func (s *signer) remote(url, name string) storage.Remote {
	r := storage.Remote{Endpoints: []string{url}, CAFile: s.file("ca.crt")}
	if name != "" {
		r.CertFile, r.KeyFile = s.file(name+".crt"), s.file(name+".key")
	}
	return r
}

// TestUpstreamEtcd: upstream's etcd behind TLS keeps the contract of a Store.
func TestUpstreamEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("runs upstream's etcd")
	}
	program := upstreamEtcd(t)
	storagetest.Run(t, func(t *testing.T) storage.Store {
		url, s := secured(t, program)
		client, err := storage.Dial(t.Context(), s.remote(url, "client"))
		if err != nil {
			t.Fatal(err)
		}
		e := storage.NewEtcd(client)
		t.Cleanup(func() { e.Close() })
		return e
	})
}

// TestDialRefused: whoever etcd does not trust, or who does not trust etcd, is
// told so at the start.
func TestDialRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("runs upstream's etcd")
	}
	url, s := secured(t, upstreamEtcd(t))
	client, err := storage.Dial(t.Context(), s.remote(url, "client")) // it is up
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
	untrusted := &signer{dir: t.TempDir()}
	untrusted.issue(t, "ca")
	untrusted.issue(t, "client")
	foreign := s.remote(url, "")
	foreign.CertFile, foreign.KeyFile = untrusted.file("client.crt"), untrusted.file("client.key")
	for name, c := range map[string]struct {
		remote storage.Remote
		want   string
	}{
		"no certificate":         {s.remote(url, ""), "no answer in 20s: "},
		"a stranger's":           {foreign, "no answer in 20s: "},
		"etcd of someone else's": {untrusted.remote(url, "client"), "x509: certificate signed by unknown authority"},
		"no such file":           {s.remote(url, "nobody"), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			client, err := storage.Dial(ctx, c.remote)
			if err == nil {
				client.Close()
				t.Fatal("it was let in")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, want %q in it", err, c.want)
			}
		})
	}
}
