package ingress

import (
	"crypto/tls"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/internal/references"
)

// certify finds the certificates of an Ingress' hosts. A host that an older Ingress has
// one for keeps that one.
func (c *compilation) certify(s *subject) {
	if len(s.ing.Spec.TLS) == 0 || s.want.passthrough {
		return
	}
	certs := make([]*tls.Certificate, min(len(s.ing.Spec.TLS), maxPaths))
	for i := range certs {
		certs[i] = c.certificate(s, &s.ing.Spec.TLS[i])
	}
	for _, host := range s.hosts {
		if host == "" || c.owners[host] != s.name.Namespace {
			continue
		}
		if cert, found := certificateOf(host, s.ing.Spec.TLS[:len(certs)], certs); found {
			if s.want.http3 && !c.http3Named[host] {
				c.http3Named[host] = true
				c.made.http3 = append(c.made.http3, host)
			}
			if _, taken := c.names[host]; taken {
				continue
			}
			if cert == nil {
				cert = c.Default
			} else if err := cert.Leaf.VerifyHostname(strings.Replace(host, "*", "x", 1)); err != nil {
				s.fault("the certificate for host %s is not of that name, so that the default certificate is shown: %v", host, err)
				cert = c.Default
			}
			c.names[host] = cert
		}
	}
}

// order says which certificates an Ingress wants to be got by ACME: those of its Secrets,
// for the hosts that are its namespace's.
func (c *compilation) order(s *subject) {
	if !s.want.acme || s.want.passthrough {
		return
	}
	for i := range s.ing.Spec.TLS[:min(len(s.ing.Spec.TLS), maxPaths)] {
		t := &s.ing.Spec.TLS[i]
		if t.SecretName == "" {
			s.fault("annotation %s is not followed for an entry of spec.tls that names no Secret", references.ACMEAnnotation)
			continue
		}
		hosts := t.Hosts
		if len(hosts) == 0 {
			hosts = s.allHosts()
		}
		w := Order{Secret: types.NamespacedName{Namespace: s.name.Namespace, Name: t.SecretName}, Owner: s.ing}
		for _, host := range hosts {
			host = strings.ToLower(host)
			switch {
			case host == "" || slices.Contains(w.Hosts, host):
			case c.owners[host] != s.name.Namespace:
				s.fault("no certificate is ordered for host %s: no rule of the namespace's Ingresses has it, or an older Ingress of another namespace", clipped(host))
			default:
				w.Hosts = append(w.Hosts, host)
			}
		}
		slices.Sort(w.Hosts)
		c.made.challenged = append(c.made.challenged, w.Hosts...)
		c.made.orders = append(c.made.orders, w)
	}
}

// allHosts are the hosts of its rules and its aliases.
func (s *subject) allHosts() (all []string) {
	for i := range min(len(s.ing.Spec.Rules), maxPaths) {
		all = append(all, strings.ToLower(s.ing.Spec.Rules[i].Host))
	}
	return append(all, s.want.aliases...)
}

// certificate is that of one entry; nil, with a fault, where there is none.
func (c *compilation) certificate(s *subject, t *networkingv1.IngressTLS) *tls.Certificate {
	if t.SecretName == "" {
		return nil // the default one is asked for
	}
	secret := c.Secret(types.NamespacedName{Namespace: s.name.Namespace, Name: t.SecretName})
	if secret == nil && s.want.acme {
		return nil // it is on its way, and events tell of that
	}
	if secret == nil {
		s.fault("Secret %q for TLS %s, so that the default certificate is shown", t.SecretName, c.missing(s, "secrets", t.SecretName))
		return nil
	}
	cert, err := c.Parsed.Certificate(secret)
	if err != nil {
		s.fault("Secret %q for TLS cannot be used, so that the default certificate is shown: %v", t.SecretName, err)
		return nil
	}
	for _, at := range []time.Time{cert.Leaf.NotBefore, cert.Leaf.NotAfter} {
		if u := &c.made.until; c.Now.Before(at) && (u.IsZero() || at.Before(*u)) {
			*u = at
		}
	}
	if err := expired(cert, c.Now); err != nil {
		s.fault("Secret %q for TLS: %v", t.SecretName, err)
	}
	return cert
}

// certificateOf is the certificate of a host: that of the entry that names it, or else
// of the first whose certificate bears the name. found says that the host has TLS.
func certificateOf(host string, entries []networkingv1.IngressTLS, certs []*tls.Certificate) (cert *tls.Certificate, found bool) {
	for i := range entries {
		if slices.ContainsFunc(entries[i].Hosts, func(h string) bool { return strings.EqualFold(h, host) }) {
			return certs[i], true
		}
	}
	for i := range entries {
		if certs[i] != nil && certs[i].Leaf.VerifyHostname(strings.Replace(host, "*", "x", 1)) == nil {
			return certs[i], true
		}
	}
	for i := range entries {
		if len(entries[i].Hosts) == 0 {
			return certs[i], true
		}
	}
	return nil, false
}
