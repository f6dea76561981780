package secureserving

import (
	"crypto/tls"
	"errors"
	"fmt"
	"knarr/internal/keypair"
	"net"
	"path/filepath"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// certificate gives the serving certificate: of the files, read again when they
// change, or one made here.
func (o *Options) certificate(name string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	flag, certFile, keyFile := "--tls-cert-file", o.CertFile, o.KeyFile
	if certFile == "" {
		host := o.Address
		if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
			host = "localhost"
		}
		certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(host, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, []string{"localhost"})
		if err != nil {
			return nil, fmt.Errorf("make a serving certificate: %w", err)
		}
		if o.CertDir == "" {
			pair, err := tls.X509KeyPair(certPEM, keyPEM)
			return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }, err
		}
		flag, certFile, keyFile = "--cert-dir", filepath.Join(o.CertDir, name+".crt"), filepath.Join(o.CertDir, name+".key")
		if readable, _ := cert.CanReadCertAndKey(certFile, keyFile); !readable {
			if err := errors.Join(cert.WriteCert(certFile, certPEM), keyutil.WriteKey(keyFile, keyPEM)); err != nil {
				return nil, fmt.Errorf("--cert-dir: %w", err)
			}
		}
	}
	pair, err := keypair.Open(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %s and %s: %w", flag, certFile, keyFile, err)
	}
	return pair.Serving, nil
}
