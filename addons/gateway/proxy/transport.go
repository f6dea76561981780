package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"time"

	"knarr/addons/gateway/route"
)

// Defaults for what a Backend leaves open.
const (
	connectTimeout = 5 * time.Second
	readTimeout    = 60 * time.Second
	idleTimeout    = 60 * time.Second
	maxIdle        = 512 // connections of an endpoint
)

// transports are how the endpoints of one backend are reached.
type transports struct {
	spec *route.Backend
	tls  *tls.Config
}

func newTransports(spec *route.Backend) *transports {
	t := &transports{spec: spec}
	if spec.Protocol == route.BackendHTTPS {
		t.tls = clientTLS(spec)
	}
	return t
}

// A transport reaches one endpoint.
type transport struct {
	http *http.Transport
	tls  bool
}

func (t *transports) open(at netip.AddrPort) *transport {
	address := at.String()
	dialer := &net.Dialer{Timeout: orElse(t.spec.ConnectTimeout, connectTimeout), KeepAlive: 30 * time.Second}
	h := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		},
		TLSClientConfig:       t.tls,
		TLSHandshakeTimeout:   orElse(t.spec.ConnectTimeout, connectTimeout),
		ResponseHeaderTimeout: orElse(t.spec.ReadTimeout, readTimeout),
		MaxIdleConnsPerHost:   maxIdle,
		IdleConnTimeout:       idleTimeout,
		DisableCompression:    true,
		Protocols:             new(http.Protocols),
	}
	switch t.spec.Protocol {
	case route.BackendH2C:
		h.Protocols.SetUnencryptedHTTP2(true)
	case route.BackendHTTPS:
		h.Protocols.SetHTTP1(true)
		h.Protocols.SetHTTP2(true)
	default:
		h.Protocols.SetHTTP1(true)
	}
	return &transport{http: h, tls: t.tls != nil}
}

// RoundTrip asks the endpoint.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.tls {
		r.URL.Scheme = "https"
	}
	return t.http.RoundTrip(r)
}

// Close ends idle connections; those in use end with their request.
func (t *transport) Close() error {
	t.http.CloseIdleConnections()
	t.http.DisableKeepAlives = true
	return nil
}

func orElse(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

// clientTLS is how a backend's certificate is checked. Without authorities it is not, as
// with ingress-nginx.
func clientTLS(spec *route.Backend) *tls.Config {
	c := &tls.Config{ServerName: spec.ServerName, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		ClientSessionCache: tls.NewLRUClientSessionCache(64)}
	if spec.Certificate != nil {
		c.Certificates = []tls.Certificate{*spec.Certificate}
	}
	c.InsecureSkipVerify = true // what is to be checked, VerifyConnection checks
	if spec.CAs == nil && !spec.SystemCAs {
		return c
	}
	names := spec.Names
	if len(names) == 0 {
		names = []string{spec.ServerName}
	}
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("the backend has no certificate")
		}
		leaf := state.PeerCertificates[0]
		options := x509.VerifyOptions{Roots: spec.CAs, Intermediates: x509.NewCertPool()}
		for _, c := range state.PeerCertificates[1:] {
			options.Intermediates.AddCert(c)
		}
		if _, err := leaf.Verify(options); err != nil {
			return err
		}
		return verifyName(leaf, names)
	}
	return c
}

// verifyName checks that a certificate is for one of some names; a name with a scheme is
// a URI of it.
func verifyName(leaf *x509.Certificate, names []string) (err error) {
	for _, name := range names {
		for _, uri := range leaf.URIs {
			if uri.String() == name {
				return nil
			}
		}
		if e := leaf.VerifyHostname(name); e == nil {
			return nil
		} else if err == nil {
			err = e
		}
	}
	return err
}
