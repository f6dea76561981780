package secureserving

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

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
	p := &pairOfFiles{flag: flag, cert: certFile, key: keyFile}
	_, err := p.get(nil)
	return p.get, err
}

// A pairOfFiles is a certificate and its key, read anew when the file is another.
type pairOfFiles struct {
	flag      string
	cert, key string
	mu        sync.Mutex
	have      *tls.Certificate
	stamp     time.Time
	unread    time.Time // of a file that could not be read
}

func (p *pairOfFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st, err := os.Stat(p.cert)
	if err == nil && p.have != nil && st.ModTime().Equal(p.stamp) {
		return p.have, nil
	}
	pair, loadErr := tls.LoadX509KeyPair(p.cert, p.key)
	if loadErr != nil {
		if p.have == nil {
			return nil, fmt.Errorf("%s: %s and %s: %w", p.flag, p.cert, p.key, loadErr)
		}
		if err == nil && !p.unread.Equal(st.ModTime()) { // half written, perhaps
			p.unread = st.ModTime()
			slog.Warn("the serving certificate cannot be read; the one before is served", "file", p.cert, "key", p.key, "err", loadErr)
		}
		return p.have, nil
	}
	p.have = &pair
	if err == nil {
		p.stamp = st.ModTime()
	}
	return p.have, nil
}
