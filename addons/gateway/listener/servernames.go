package listener

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"slices"
	"strings"

	"knarr/addons/gateway/route"
)

// ServerNames finds what serves a TLS connection by the name that the client asks for.
type ServerNames struct {
	hosts route.Hosts[*serverName]
	// peeks says that some connections are led on, so that each one's first bytes are
	// looked at before they are answered.
	peeks bool
}

// A serverName is a listener of TLS or HTTPS.
type serverName struct {
	listener *route.Listener
	config   *tls.Config
	// asking also asks clients for a certificate, which routes of some hosts check.
	asking      *tls.Config
	asks        route.Hosts[bool]
	http3       *http3Names // nil if it is not served so
	passthrough bool
	streams     *NamedStreams // nil for HTTPS
}

// NewServerNames is for the listeners of one port. Of several with the same host name the
// first serves. streams are those of the listeners of TLS. What did not change since the
// port's last ones is taken from there.
func NewServerNames(listeners []*route.Listener, streams map[string]*NamedStreams, before *Port) *ServerNames {
	s := &ServerNames{}
	for _, l := range listeners {
		if _, taken := s.hosts.Get(l.Hostname, false); taken {
			continue
		}
		of := &serverName{listener: l, passthrough: l.Passthrough, streams: streams[l.Name]}
		if !l.Passthrough {
			if of.config = before.configOf(l); of.config == nil {
				of.config = serverTLS(l)
			}
			of.ask(l.Routes)
			of.http3 = newHTTP3Names(of, before)
		}
		s.peeks = s.peeks || l.Protocol == route.TLS
		s.hosts.Set(l.Hostname, false, of)
	}
	for _, l := range listeners {
		of, _ := s.hosts.Get(l.Hostname, false)
		for _, name := range l.Own {
			if _, taken := s.hosts.Get(name, false); !taken && of.listener == l {
				s.hosts.Set(name, false, of)
			}
		}
	}
	return s
}

func (s *ServerNames) find(name string) (*serverName, bool) {
	host, ok := route.CleanHost(name)
	if !ok {
		host = ""
	}
	return s.hosts.Find(host)
}

var errNoServer = errors.New("no listener for this server name")

// configFor is how TLS ends for one client.
func (p *Port) configFor(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	c := p.content.Load()
	if c.TLS == nil {
		return nil, errNoServer
	}
	of, found := c.TLS.find(hello.ServerName)
	if !found || of.config == nil {
		_ = hello.Conn.Close() // a connection that leads nowhere is closed, without an alert
		return nil, errNoServer
	}
	if of.asking != nil {
		if host, ok := route.CleanHost(hello.ServerName); ok {
			if asks, _ := of.asks.Find(host); asks {
				return of.asking, nil
			}
		}
	}
	return of.config, nil
}

// ask finds the hosts whose routes check certificates of clients.
func (s *serverName) ask(routes []*route.Route) {
	if s.listener.ClientCAs != nil {
		return // all are asked
	}
	for _, r := range routes {
		if !asksForCertificate(r) {
			continue
		}
		if s.asking == nil {
			s.asking = s.config.Clone()
			s.asking.ClientAuth = tls.RequestClientCert
		}
		for _, h := range r.Hosts {
			s.asks.Set(strings.ToLower(h), false, true)
		}
		if len(r.Hosts) == 0 {
			s.asks.Set("", false, true)
		}
	}
}

// configOf is the configuration of a listener that the port has, if it asks for the same.
func (p *Port) configOf(l *route.Listener) *tls.Config {
	if p == nil || p.content.Load().TLS == nil {
		return nil
	}
	old, ok := p.content.Load().TLS.hosts.Get(l.Hostname, false)
	if !ok || old.config == nil {
		return nil
	}
	o := old.listener
	if o.Protocol != l.Protocol || o.MinVersion != l.MinVersion || o.ClientOptional != l.ClientOptional || o.ClientUnverified != l.ClientUnverified || (o.ClientCAs == nil) != (l.ClientCAs == nil) ||
		l.ClientCAs != nil && !l.ClientCAs.Equal(o.ClientCAs) || !slices.Equal(o.Certificates, l.Certificates) || !route.Same(o.Names, l.Names) && !maps.Equal(o.Names, l.Names) {
		return nil
	}
	return old.config
}

func serverTLS(l *route.Listener) *tls.Config {
	certificates := byName(l.Certificates, l.Names)
	c := &tls.Config{
		MinVersion: max(l.MinVersion, tls.VersionTLS12),
		// A write is one record from the first one on, and so one system call: an answer of 2 kB
		// would be two of each until a connection has sent 128 kB.
		DynamicRecordSizingDisabled: true,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return certificates.choose(hello)
		},
	}
	if l.Protocol == route.HTTPS {
		c.NextProtos = []string{"h2", "http/1.1"}
	}
	if l.ClientUnverified {
		c.ClientAuth = tls.RequestClientCert
	} else if l.ClientCAs != nil {
		c.ClientCAs, c.ClientAuth = l.ClientCAs, tls.RequireAndVerifyClientCert
		if l.ClientOptional {
			c.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	return c
}

func asksForCertificate(r *route.Route) bool {
	return slices.ContainsFunc(r.Rules, func(rule route.Rule) bool {
		return rule.Filters.Auth != nil && (rule.Filters.Auth.ClientCAs != nil || rule.Filters.Auth.PassCertificate)
	})
}

// certificates are those of one listener by the names that they are for.
type certificates struct {
	all    []*tls.Certificate
	named  map[string]*tls.Certificate // as the listener says
	byName map[string][]*tls.Certificate
}

func byName(all []*tls.Certificate, named map[string]*tls.Certificate) *certificates {
	c := &certificates{all: all, named: make(map[string]*tls.Certificate, len(named)), byName: map[string][]*tls.Certificate{}}
	for name, cert := range named {
		c.named[strings.ToLower(name)] = cert
	}
	for _, cert := range all {
		leaf := cert.Leaf
		if leaf == nil && len(cert.Certificate) > 0 {
			leaf, _ = x509.ParseCertificate(cert.Certificate[0])
		}
		if leaf == nil {
			continue
		}
		names := leaf.DNSNames
		if len(names) == 0 && leaf.Subject.CommonName != "" {
			names = []string{leaf.Subject.CommonName}
		}
		for _, name := range names {
			name = strings.ToLower(name)
			c.byName[name] = append(c.byName[name], cert)
		}
	}
	return c
}

// choose takes the first certificate for the name that the client can use, else the first
// of all.
func (c *certificates) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	_, parent, _ := strings.Cut(name, ".")
	for _, n := range []string{name, "*." + parent} {
		if cert := c.named[n]; cert != nil {
			return cert, nil
		}
	}
	var fallback *tls.Certificate
	for _, list := range [][]*tls.Certificate{c.byName[name], c.byName["*."+parent]} {
		for _, cert := range list {
			if len(list) == 1 || hello.SupportsCertificate(cert) == nil {
				return cert, nil
			}
			fallback = cert
		}
	}
	switch {
	case fallback != nil:
		return fallback, nil
	case len(c.all) > 0:
		return c.all[0], nil
	}
	return nil, errors.New("the listener has no certificate")
}
