package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"knarr/addons/gateway/http1"
	"knarr/addons/gateway/proxyprotocol"
	"knarr/addons/gateway/route"
)

// Defaults for what a Backend leaves open.
const (
	connectTimeout = 5 * time.Second
	readTimeout    = 60 * time.Second
	writeTimeout   = 60 * time.Second
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

// A transport reaches one endpoint: by a pool of its own with HTTP/1.1 in plain, else by
// net/http's.
type transport struct {
	plain  *http1.Pool
	other  *http.Transport
	scheme string
}

// clientKeyType is the context's key of whom a connection with a PROXY header is for.
type clientKeyType struct{}

func (t *transports) open(at netip.AddrPort) *transport {
	address := at.String()
	dialer := &net.Dialer{Timeout: orElse(t.spec.ConnectTimeout, connectTimeout), KeepAlive: 30 * time.Second}
	dial := func(ctx context.Context) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil && t.spec.ProxyProtocol > 0 {
			client, _ := ctx.Value(clientKeyType{}).(netip.AddrPort)
			if _, err = conn.Write(proxyprotocol.Append(nil, t.spec.ProxyProtocol, client, at)); err != nil {
				_ = conn.Close()
			}
		}
		return conn, err
	}
	// A connection that began with a PROXY header is of one client.
	idle := maxIdle
	if t.spec.ProxyProtocol > 0 {
		idle = 0
	}
	if t.spec.Protocol != route.BackendH2C && t.spec.Protocol != route.BackendHTTPS {
		return &transport{plain: &http1.Pool{
			Dial: func(ctx context.Context) (net.Conn, net.Conn, error) {
				conn, err := dial(ctx)
				return conn, conn, err
			},
			ReadTimeout: orElse(t.spec.ReadTimeout, readTimeout), WriteTimeout: orElse(t.spec.WriteTimeout, writeTimeout),
			MaxIdle: idle, IdleTimeout: idleTimeout,
		}}
	}
	h := &http.Transport{
		DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		TLSClientConfig:       t.tls,
		TLSHandshakeTimeout:   orElse(t.spec.ConnectTimeout, connectTimeout),
		ResponseHeaderTimeout: orElse(t.spec.ReadTimeout, readTimeout),
		MaxIdleConnsPerHost:   idle,
		DisableKeepAlives:     idle == 0,
		IdleConnTimeout:       idleTimeout,
		DisableCompression:    true,
		Protocols:             new(http.Protocols),
	}
	if t.tls == nil {
		h.Protocols.SetUnencryptedHTTP2(true)
		return &transport{other: h, scheme: "http"}
	}
	h.Protocols.SetHTTP1(true)
	h.Protocols.SetHTTP2(true)
	return &transport{other: h, scheme: "https"}
}

// RoundTrip asks the endpoint for r.RequestURI. Nothing of the request is used once the
// answer's body was closed.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.plain != nil {
		return t.plain.RoundTrip(r)
	}
	u, err := url.ParseRequestURI(r.RequestURI)
	if err != nil {
		return nil, err
	}
	body, trailer := r.Body, r.Trailer
	r = r.Clone(r.Context()) // net/http may look at it after the answer
	u.Scheme, u.Host = t.scheme, "backend"
	r.URL, r.RequestURI, r.Body, r.Trailer = u, "", body, trailer
	delete(r.Header, "Content-Length")
	return t.other.RoundTrip(r)
}

// Close ends idle connections; those in use end with their request.
func (t *transport) Close() error {
	if t.plain != nil {
		return t.plain.Close()
	}
	t.other.CloseIdleConnections()
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
