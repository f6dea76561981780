package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// How long certificates live. Leaves are made anew once a third of their life is
// gone, at a start and while the process runs.
const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 365 * 24 * time.Hour
	backdate = time.Hour // clocks differ
)

// authority is the cluster's certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	pool *x509.CertPool
}

// openAuthority reads a CA of the layout, or makes it.
func openAuthority(l layout, name string) (*authority, error) {
	certFile, keyFile := l.tls(name+".crt"), l.tls(name+".key")
	if _, err := os.Stat(keyFile); os.IsNotExist(err) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		template := &x509.Certificate{
			SerialNumber: serial(), Subject: pkix.Name{CommonName: "knarr-" + name},
			NotBefore: now.Add(-backdate), NotAfter: now.Add(caLife),
			KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageKeyEncipherment,
			IsCA:     true, BasicConstraintsValid: true,
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			return nil, fmt.Errorf("make CA: %w", err)
		}
		if err := writePair(certFile, keyFile, der, key); err != nil {
			return nil, err
		}
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("read CA: %s is not an ECDSA key", keyFile)
	}
	a := &authority{cert: pair.Leaf, key: key, pool: x509.NewCertPool()}
	a.pool.AddCert(pair.Leaf)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Leaf.Raw})
	return a, nil
}

// leaf describes a certificate to be signed.
type leaf struct {
	name   string // file name below tls/, without extension
	user   string
	groups []string
	hosts  []string // names and addresses, for servers
	peer   bool     // a client too
}

// issue returns the certificate of that file when it still is what l describes
// and has two thirds of its life left, else signs a new one.
func (a *authority) issue(l layout, want leaf) (*tls.Certificate, error) {
	certFile, keyFile := l.tls(want.name+".crt"), l.tls(want.name+".key")
	if pair, err := tls.LoadX509KeyPair(certFile, keyFile); err == nil && want.describes(pair.Leaf, a.cert) {
		return &pair, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := a.sign(key.Public(), want)
	if err != nil {
		return nil, err
	}
	if err := writePair(certFile, keyFile, der, key); err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	return &pair, err
}

// sign makes the certificate of a key.
func (a *authority) sign(key crypto.PublicKey, want leaf) ([]byte, error) {
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: want.user, Organization: want.groups},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(leafLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(want.hosts) > 0 {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	if want.peer {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	for _, h := range want.hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", want.name, err)
	}
	return der, nil
}

// describes reports whether cert is what is wanted, signed by ca, and has two
// thirds of its life left.
func (want leaf) describes(cert, ca *x509.Certificate) bool {
	now := time.Now()
	if cert.CheckSignatureFrom(ca) != nil || !now.Before(renewal(cert)) || now.Before(cert.NotBefore) {
		return false
	}
	if cert.Subject.CommonName != want.user || !slices.Equal(cert.Subject.Organization, want.groups) {
		return false
	}
	for _, h := range want.hosts {
		if cert.VerifyHostname(h) != nil {
			return false
		}
	}
	return true
}

// renewal is when a certificate should have a successor: when two thirds of its
// life are left.
func renewal(cert *x509.Certificate) time.Time { return cert.NotAfter.Add(-leafLife * 2 / 3) }

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // the system has no randomness: nothing is safe
	}
	return n
}

// writePair stores a certificate and its key; the key last, since its presence
// says that both are there.
func writePair(certFile, keyFile string, der []byte, key *ecdsa.PrivateKey) error {
	if err := writeFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return err
	}
	return writeKey(keyFile, key)
}

func writeKey(file string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writeFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// writeFile replaces a file whole or not at all.
func writeFile(file string, content []byte, mode os.FileMode) error {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// openKey reads the private key of a file, or makes it.
func openKey(file string) (*ecdsa.PrivateKey, error) {
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		return key, writeKey(file, key)
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("read %s: not in PEM form", file)
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return key, nil
}
