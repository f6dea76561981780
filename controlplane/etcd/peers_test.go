package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"knarr/controlplane/etcd"
)

// credentials are a CA and a certificate by it for loopback.
func credentials(t *testing.T) etcd.Network {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "peer"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	n := etcd.Network{CertFile: filepath.Join(dir, "crt"), KeyFile: filepath.Join(dir, "key"), User: "peer"}
	n.CAFile = n.CertFile
	for file, block := range map[string]*pem.Block{n.CertFile: {Type: "CERTIFICATE", Bytes: der}, n.KeyFile: {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// at is the network of one more member.
func at(t *testing.T, n etcd.Network) *etcd.Network {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n.URL = url.URL{Scheme: "https", Host: l.Addr().String()}
	return &n
}

// joined starts a member that the first lets in.
func joined(t *testing.T, ctx context.Context, first *etcd.Member, name, dir string, n *etcd.Network) *etcd.Member {
	t.Helper()
	all, err := first.Add(ctx, name, n.URL.String())
	if err != nil {
		t.Fatal(err)
	}
	m, err := etcd.Start(ctx, etcd.Config{Dir: dir, Name: name, Network: n, Join: all})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	return m
}

func names(t *testing.T, ctx context.Context, m *etcd.Member) (all []string) {
	t.Helper()
	peers, err := m.Peers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range peers {
		all = append(all, p.Name)
		if p.Learner {
			t.Errorf("%s has no vote", p.Name)
		}
	}
	return all
}

// One member becomes three and one again, and keeps what was acknowledged.
func TestGrowAndShrink(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	creds := credentials(t)
	first, err := etcd.Start(ctx, etcd.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := first.Client().Put(ctx, "/alone", "1"); err != nil {
		t.Fatal(err)
	}
	watch := first.Client().Watch(ctx, "/")
	if err := first.Grow(ctx, "one", at(t, creds)); err != nil {
		t.Fatal(err)
	}
	for range watch { // ends, rather than staying silent
	}
	<-first.Grown()
	if _, alone := first.Newest(); alone {
		t.Error("a member that others may join takes itself for the only one")
	}
	dirs := map[string]string{"two": t.TempDir(), "three": t.TempDir()}
	nets := map[string]*etcd.Network{"two": at(t, creds), "three": at(t, creds)}
	two := joined(t, ctx, first, "two", dirs["two"], nets["two"])
	three := joined(t, ctx, first, "three", dirs["three"], nets["three"])
	defer three.Close()
	if got := names(t, ctx, three); len(got) != 3 {
		t.Fatalf("members %v", got)
	}
	if _, err := first.Add(ctx, "two", "https://127.0.0.1:1"); !errors.Is(err, etcd.ErrTaken) {
		t.Errorf("a taken name: %v", err)
	}
	if resp, err := three.Client().Get(ctx, "/alone"); err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	two.Close()
	if _, err := three.Client().Put(ctx, "/without-two", "1"); err != nil {
		t.Fatal(err)
	}
	// Without two, nobody else may go.
	if err := three.Remove(ctx, "one"); err == nil || !strings.Contains(err.Error(), "of the 2 servers left only 1 answer") {
		t.Errorf("remove one of two: %v", err)
	}
	two, err = etcd.Start(ctx, etcd.Config{Dir: dirs["two"], Name: "two", Network: nets["two"]})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := two.Client().Get(ctx, "/without-two"); err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("after its return: %v, %v", resp, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- two.Run(ctx) }()
	if err := first.Remove(ctx, "two"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, etcd.ErrRemoved) {
		t.Errorf("who is removed says %v", err)
	}
	if err := first.Remove(ctx, "three"); err != nil {
		t.Fatal(err)
	}
	if got := names(t, ctx, first); len(got) != 1 || got[0] != "one" {
		t.Fatalf("members %v", got)
	}
	if _, err := first.Client().Put(ctx, "/alone", "2"); err != nil {
		t.Fatal(err)
	}
	// Wiped, it comes back as a new member.
	again := joined(t, ctx, first, "two", t.TempDir(), nets["two"])
	defer again.Close()
	if got := names(t, ctx, again); len(got) != 2 {
		t.Errorf("members %v", got)
	}
}

// The peers' port is for those with a certificate only.
func TestUnknownPeersAreRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	creds := credentials(t)
	first, err := etcd.Start(ctx, etcd.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if err := first.Grow(ctx, "one", at(t, creds)); err != nil {
		t.Fatal(err)
	}
	all, err := first.Add(ctx, "two", "https://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	unknown := at(t, credentials(t))
	unknown.CAFile = creds.CAFile // believes the member, is not believed
	if m, err := etcd.Start(ctx, etcd.Config{Dir: t.TempDir(), Name: "two", Network: unknown, Join: all}); err == nil {
		m.Close()
		t.Error("a stranger got in")
	}
}

// A port that is taken leaves the member as it was.
func TestGrowWhereTaken(t *testing.T) {
	creds := credentials(t)
	m, err := etcd.Start(t.Context(), etcd.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	creds.URL = url.URL{Scheme: "https", Host: l.Addr().String()}
	if err := m.Grow(t.Context(), "one", &creds); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("%v", err)
	}
	if _, err := m.Client().Put(t.Context(), "/a", "1"); err != nil {
		t.Error(err)
	}
}
