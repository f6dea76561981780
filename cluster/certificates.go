package cluster

import (
	"context"
	"crypto"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/addons/metrics"
	"knarr/internal/keypair"
	kubeletcertificates "knarr/node/kubelet/certificates"
)

// certificates are the ones that a server's process uses itself.
type certificates struct {
	serving, kubeletClient, metrics, frontProxy *keypair.File
	tokens                                      crypto.Signer
	renew                                       time.Time // when the first has to be renewed
}

// frontProxyName is how the API server is known to the servers it passes
// requests on to.
const frontProxyName = "front-proxy-client"

// The names of a server's certificates below tls/.
const (
	servingName       = "apiserver"
	adminName         = "admin"
	kubeletClientName = "apiserver-kubelet-client"
	metricsName       = "metrics-server"
)

// leaves are the certificates of a server, and who signs each.
func (s *Server) leaves() map[*authority][]leaf {
	o := &s.opts
	return map[*authority][]leaf{
		s.ca: {
			{name: servingName, user: "kube-apiserver", hosts: o.hosts()},
			{name: adminName, user: "system:admin", groups: []string{user.SystemPrivilegedGroup}},
			{name: kubeletClientName, user: "kube-apiserver-kubelet-client"}, // bound to system:kubelet-api-admin
			{name: metricsName, user: metricsUser, groups: serviceaccount.MakeGroupNames(metrics.Namespace)},
			kubeletLeaf(o.NodeName, o.nodeIPs), nodeClientLeaf(o.NodeName),
		},
		s.frontProxy: {{name: frontProxyName, user: frontProxyName}},
	}
}

// certificates opens the authorities, and makes what a server needs and has not.
func (s *Server) certificates() (*certificates, error) {
	var err error
	if s.ca, err = openAuthority(s.layout, "ca"); err != nil {
		return nil, err
	}
	if s.frontProxy, err = openAuthority(s.layout, "front-proxy-ca"); err != nil {
		return nil, err
	}
	c := &certificates{}
	if c.tokens, err = openKey(s.layout.tls("service-account.key")); err != nil {
		return nil, err
	}
	// Whoever sees the kubeconfig may ask for the token.
	if _, _, err := s.layout.tokens(&s.opts, s.ca.pem); err != nil {
		return nil, err
	}
	if c.renew, err = s.issueAll(); err != nil {
		return nil, err
	}
	for name, to := range map[string]**keypair.File{
		servingName: &c.serving, kubeletClientName: &c.kubeletClient, metricsName: &c.metrics, frontProxyName: &c.frontProxy,
	} {
		if *to, err = keypair.Open(s.layout.tls(name+".crt"), s.layout.tls(name+".key")); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// issueAll signs what is not there or has to be renewed, and writes the
// kubeconfigs; next is when the first has to be renewed.
func (s *Server) issueAll() (next time.Time, err error) {
	for by, leaves := range s.leaves() {
		for _, want := range leaves {
			cert, err := by.issue(s.layout, want)
			if err != nil {
				return time.Time{}, err
			}
			if at := renewal(cert.Leaf); next.IsZero() || at.Before(next) {
				next = at
			}
			if want.name == adminName {
				if err := s.writeKubeconfigs(cert); err != nil {
					return time.Time{}, err
				}
			}
		}
	}
	return next, nil
}

func (s *Server) writeKubeconfigs(admin *tls.Certificate) error {
	o := &s.opts
	host := o.bindAddress()
	if a, err := netip.ParseAddr(host); err == nil && a.IsUnspecified() {
		host = "127.0.0.1"
	}
	server := "https://" + net.JoinHostPort(host, strconv.Itoa(o.HTTPSListenPort))
	if err := writeKubeconfig(s.layout.kubeconfig(), server, s.ca.pem, admin, 0o600); err != nil {
		return err
	}
	if o.WriteKubeconfig != "" {
		return writeKubeconfig(o.WriteKubeconfig, server, s.ca.pem, admin, o.mode)
	}
	return nil
}

// maxRenewalWait bounds a wait for the time to renew: clocks are set, and machines
// sleep.
const maxRenewalWait = 24 * time.Hour

// renewCertificates keeps a server's certificates valid while it runs. Who shows
// one reads its file again.
func (s *Server) renewCertificates(ctx context.Context) error {
	for {
		select {
		case <-time.After(min(max(time.Until(s.renewal), time.Minute), maxRenewalWait)):
		case <-ctx.Done():
			return nil
		}
		var err error
		if s.renewal, err = s.issueAll(); err != nil {
			kubeletcertificates.Failed()
			return err
		}
		select {
		case <-s.several():
			if _, err := s.network(); err != nil {
				return err
			}
		default:
		}
		for by := range s.leaves() {
			if left := time.Until(by.cert.NotAfter); left < leafLife {
				slog.WarnContext(ctx, "a certificate authority of this cluster ends; nothing signed by it is valid after that", "authority", by.cert.Subject.CommonName, "until", by.cert.NotAfter)
			}
		}
	}
}
