package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"

	"knarr/internal/keypair"
)

var errNotServing = errors.New("no serving certificate available for the kubelet")

// Server is how a kubelet comes to a certificate to serve with. All is required but
// CertFile and KeyFile.
type Server struct {
	NodeName string
	// Dir is where certificates are kept.
	Dir string
	// CertFile and KeyFile are a pair to serve with, as it is at each time, until there is
	// one that was asked for; "", or files that are not there: none.
	CertFile, KeyFile string
	// Client is what a certificate is asked for with, which has Addresses in it.
	Client    kubernetes.Interface
	Addresses func() []corev1.NodeAddress
}

// servingName begins the names of the files.
const servingName = "kubelet-server"

// ServingFile is the certificate that was asked for last, in a directory of them.
func ServingFile(dir string) string { return filepath.Join(dir, servingName+"-current.pem") }

// Run asks for a certificate, and for successors, until ctx ends. Somebody has to
// approve each request. It gives what a tls.Config takes as GetCertificate, which is
// an error until there is one.
func (s *Server) Run(ctx context.Context) (get func(*tls.ClientHelloInfo) (*tls.Certificate, error), err error) {
	// The pair of the files is not the store's to fall back to: the library would take it
	// for one that was asked for, hold on to it, and ask only when most of its life is gone.
	store, err := open(servingName, s.Dir)
	if err != nil {
		return nil, err
	}
	meanwhile, err := s.files()
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	m, err := certificate.NewManager(&certificate.Config{
		Name:                    "serving certificate",
		GetTemplate:             func() *x509.CertificateRequest { return servingRequest(s.NodeName, s.Addresses()) },
		SignerName:              certificatesv1.KubeletServingSignerName,
		GetUsages:               certificate.DefaultKubeletServingGetUsages,
		CertificateStore:        store,
		ClientsetFn:             func(*tls.Certificate) (kubernetes.Interface, error) { return s.Client, nil },
		Ctx:                     &ctx,
		CertificateRenewFailure: ServingFailures,
	})
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	m.Start()
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if c := m.Current(); c != nil {
			return c, nil
		}
		return meanwhile(hello)
	}, nil
}

// files gives the newest content of the pair of files, or an error where there is none.
func (s *Server) files() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if s.CertFile != "" {
		pair, err := keypair.Open(s.CertFile, s.KeyFile)
		if err == nil {
			return pair.Serving, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errNotServing }, nil
}

// servingRequest is for all names and addresses of a node, nil while it has no
// address. Pure.
func servingRequest(node string, addresses []corev1.NodeAddress) *x509.CertificateRequest {
	r := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
	for _, a := range addresses {
		ip := net.ParseIP(a.Address)
		switch {
		case ip != nil && !slices.ContainsFunc(r.IPAddresses, ip.Equal):
			r.IPAddresses = append(r.IPAddresses, ip)
		case ip == nil && a.Address != "" && a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP && !slices.Contains(r.DNSNames, a.Address):
			r.DNSNames = append(r.DNSNames, a.Address)
		}
	}
	if len(r.IPAddresses) == 0 {
		return nil
	}
	slices.Sort(r.DNSNames)
	slices.SortFunc(r.IPAddresses, func(a, b net.IP) int { return slices.Compare(a.To16(), b.To16()) })
	return r
}
