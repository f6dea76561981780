package ingress

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/addons/gateway/route"
	"knarr/internal/references"
)

// backend is the name of a backend of an Ingress, which is made if it is not there yet.
func (c *compilation) backend(s *subject, b *networkingv1.IngressBackend) (string, error) {
	switch {
	case b.Resource != nil:
		return "", fmt.Errorf("its backend is a %s: only Services are served", b.Resource.Kind)
	case b.Service == nil:
		return "", fmt.Errorf("it has no backend")
	}
	port := b.Service.Port.Name
	if port == "" {
		port = strconv.Itoa(int(b.Service.Port.Number))
	}
	settings := s.want.backend
	return c.service(types.NamespacedName{Namespace: s.name.Namespace, Name: b.Service.Name}, port, settings, s)
}

// service is the name of the backend that leads to a port of a Service.
func (c *compilation) service(name types.NamespacedName, port string, as route.Backend, s *subject) (string, error) {
	svc := c.Service(name)
	if svc == nil {
		return "", fmt.Errorf("Service %q was not found", name)
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return "", fmt.Errorf("Service %q is of type ExternalName, which is not served", name)
	}
	number, _ := strconv.Atoi(port)
	for _, p := range svc.Spec.Ports {
		if (p.Name != port && int(p.Port) != number) || p.Protocol != corev1.ProtocolTCP && p.Protocol != "" {
			continue
		}
		target := Target{Service: name, Port: p.Name}
		key := name.String() + ":" + strconv.Itoa(int(p.Port))
		if s.want.clusterIP && svc.Spec.ClusterIP != corev1.ClusterIPNone && svc.Spec.ClusterIP != "" {
			target.Number = uint16(p.Port)
			key += " by its address"
		}
		if as.Protocol == "" {
			as.Protocol = spoken(p.AppProtocol)
		}
		if custom(&as) {
			key += " for " + s.name.String()
		} else if as.Protocol != route.BackendHTTP {
			key += " " + string(as.Protocol)
		}
		c.backends[key] = Made{key, as, target}
		return key, nil
	}
	return "", fmt.Errorf("Service %q has no TCP port %q", name, port)
}

// custom says whether a backend differs from others by more than its protocol.
func custom(b *route.Backend) bool {
	return b.ServerName != "" || b.CAs != nil || b.SystemCAs || b.Certificate != nil || b.HashBy != "" || b.ConnectTimeout != 0 || b.ReadTimeout != 0 || b.WriteTimeout != 0
}

// spoken is the protocol that a Service says its port speaks.
func spoken(protocol *string) route.BackendProtocol {
	if protocol == nil {
		return route.BackendHTTP
	}
	switch *protocol {
	case "kubernetes.io/h2c":
		return route.BackendH2C
	case "https", "HTTPS":
		return route.BackendHTTPS
	}
	return route.BackendHTTP
}

// secure completes how a backend is spoken to by TLS.
func (c *compilation) secure(s *subject) {
	w := s.want
	if w.proxySecret == "" {
		if w.verify {
			w.backend.SystemCAs = true
		}
		return
	}
	secret, err := c.secret(s, w.proxySecret)
	if err != nil {
		s.close("annotation proxy-ssl-secret cannot be followed, so that every request is answered with 503: %v", err)
		return
	}
	if len(secret.Data[corev1.TLSCertKey]) > 0 {
		if w.backend.Certificate, err = c.Parsed.Certificate(secret); err != nil {
			s.close("Secret %q cannot be shown to the backend, so that every request is answered with 503: %v", w.proxySecret, err)
			return
		}
	}
	if w.verify {
		if w.backend.CAs, err = c.Parsed.Authorities(secret); err != nil {
			s.close("Secret %q holds no authorities of the backend, so that every request is answered with 503: %v", w.proxySecret, err)
		}
	}
}

// inside is the Service that a URL's host names, if it is one of the cluster, and the port.
func (c *compilation) inside(u *url.URL) (name types.NamespacedName, port string, ok bool) {
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	host = strings.TrimSuffix(host, "."+c.Domain)
	labels := strings.Split(host, ".")
	if len(labels) != 3 || labels[2] != "svc" {
		return name, "", false
	}
	if port = u.Port(); port == "" {
		port = map[string]string{"https": "443"}[u.Scheme]
		if port == "" {
			port = "80"
		}
	}
	return types.NamespacedName{Namespace: labels[1], Name: labels[0]}, port, true
}

// outside refuses addresses that a tenant must not make a node ask. Names are looked up,
// and refused, when they are asked.
func (c *compilation) outside(u *url.URL) error {
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if a, err := netip.ParseAddr(host); err == nil && route.Reserved(a, c.Inside) || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return fmt.Errorf("%s may not be asked", host)
	}
	return nil
}

// permitted says why an annotation may not lead to a Service: what a tenant writes opens
// another's only where that one says so.
func (c *compilation) permitted(s *subject, service types.NamespacedName) error {
	if service.Namespace == s.name.Namespace || c.Granted != nil && c.Granted(s.name.Namespace, service) {
		return nil
	}
	return fmt.Errorf("Service %s is of another namespace; a ReferenceGrant there would allow it (from: group %s, kind Ingress, namespace %s; to: group \"\", kind Service)", service, networkingv1.GroupName, s.name.Namespace)
}

// secret finds one that an annotation names.
func (c *compilation) secret(s *subject, value string) (*corev1.Secret, error) {
	name, ok := localName(s, value)
	if !ok {
		return nil, fmt.Errorf("%q is not in the Ingress' namespace", clipped(value))
	}
	secret := c.Secret(types.NamespacedName{Namespace: s.name.Namespace, Name: name})
	if secret == nil {
		return nil, fmt.Errorf("Secret %q %s", name, c.missing(s, "secrets", name))
	}
	return secret, nil
}

// missing says why a Secret or ConfigMap is not there.
func (c *compilation) missing(s *subject, resource, name string) string {
	if why := c.Left[references.Object{Resource: resource, Namespace: s.name.Namespace, Name: name}]; why != "" {
		return "is not read (" + why + ")"
	}
	return "was not found"
}
