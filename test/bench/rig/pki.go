package rig

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// An authority signs the certificates of one cluster.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// newAuthority makes one, with the key of service-account tokens beside it.
func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	c, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "bench"}, key)
	if err != nil {
		return nil, err
	}
	a := &authority{dir, c, key}
	tokens, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if err := writePEM(a.file("ca.crt"), "CERTIFICATE", c.Raw); err != nil {
		return nil, err
	}
	for name, k := range map[string]*ecdsa.PrivateKey{"ca.key": key, "sa.key": tokens} {
		der, err := x509.MarshalECPrivateKey(k)
		if err != nil {
			return nil, err
		}
		if err := writePEM(a.file(name), "EC PRIVATE KEY", der); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// openAuthority reads knarr's own.
func openAuthority(dir string) (*authority, error) {
	certs, err := cert.CertsFromFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	key, err := keyutil.PrivateKeyFromFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s/ca.key cannot sign", dir)
	}
	return &authority{dir, certs[0], signer}, nil
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue writes NAME.crt and NAME.key for a user, or for a server at hosts.
func (a *authority) issue(name, user string, groups, hosts []string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return err
	}
	t := &x509.Certificate{
		SerialNumber: n, Subject: pkix.Name{CommonName: user, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	if err := writePEM(a.file(name+".crt"), "CERTIFICATE", der); err != nil {
		return err
	}
	der, err = x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(a.file(name+".key"), "EC PRIVATE KEY", der)
}

// kubeconfig writes one for a user and returns its path.
func (a *authority) kubeconfig(server, name, user string, groups ...string) (string, error) {
	if err := a.issue(name, user, groups, nil); err != nil {
		return "", err
	}
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthority: a.file("ca.crt")}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: a.file(name + ".crt"), ClientKey: a.file(name + ".key")}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	path := a.file(name + ".kubeconfig")
	return path, clientcmd.WriteToFile(*c, path)
}

func writePEM(path, kind string, der []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
