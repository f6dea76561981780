package connect

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"knarr/controlplane/apiserver/egress"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// rest is the path behind the proxy subresource, as it was sent.
func (c *connection) rest() (prefix, rest string) {
	escaped := c.r.URL.EscapedPath()
	// The name cannot hold a slash, so the marker after it is the first.
	marker := "/" + c.info.Resource + "/" + url.PathEscape(c.info.Name) + "/proxy"
	i := strings.Index(escaped, marker)
	if i < 0 {
		marker = "/" + c.info.Resource + "/" + c.info.Name + "/proxy"
		if i = strings.Index(escaped, marker); i < 0 {
			return escaped, ""
		}
	}
	return escaped[:i+len(marker)], escaped[i+len(marker):]
}

// proxyTo relays to a base URL, the rest of the path appended.
func (c *connection) proxyTo(base *url.URL, transport http.RoundTripper) error {
	prefix, rest := c.rest()
	// What is read has a base for its relative links. Other methods go through:
	// a redirect would make them reads.
	if read := c.r.Method == http.MethodGet || c.r.Method == http.MethodHead; rest == "" && read && c.r.Header.Get("Upgrade") == "" {
		to := *c.r.URL
		to.Path += "/"
		to.RawPath = ""
		c.w.Header().Set("Location", to.RequestURI())
		c.w.WriteHeader(http.StatusMovedPermanently)
		return nil
	}
	target := *base
	plain, err := url.PathUnescape(rest)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	target.Path, target.RawPath, target.RawQuery = plain, rest, c.r.URL.RawQuery
	l := &relay{target: target, transport: &pages{transport, prefix, c.s.places}, prefix: prefix, failure: func(err error) error {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("error trying to reach service: %v", err))
	}}
	l.serve(c)
	return nil
}

// splitTarget reads [scheme:]name[:port].
func splitTarget(id string) (scheme, name, port string, ok bool) {
	switch parts := strings.Split(id, ":"); len(parts) {
	case 1:
		return "", parts[0], "", true
	case 2:
		return "", parts[0], parts[1], true
	case 3:
		if parts[0] == "" || parts[0] == "http" || parts[0] == "https" {
			return parts[0], parts[1], parts[2], true
		}
	}
	return "", "", "", false
}

func baseURL(scheme, ip, port string) *url.URL {
	if scheme == "" {
		scheme = "http"
	}
	host := ip
	if port != "" {
		host = net.JoinHostPort(ip, port)
	} else if strings.Contains(ip, ":") {
		host = "[" + ip + "]"
	}
	return &url.URL{Scheme: scheme, Host: host}
}

// proxyable refuses addresses that lead to this host or its neighbours only.
// Those of API servers are refused once the port is known: by Config.Dial.
func proxyable(ip string) bool {
	addr, err := netip.ParseAddr(ip)
	return err == nil && egress.Proxyable(addr)
}

func (c *connection) podProxy() error {
	scheme, name, port, ok := splitTarget(c.info.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", c.info.Name))
	}
	if err := c.admit(&corev1.PodProxyOptions{}); err != nil {
		return err
	}
	pod, err := c.pod(name)
	if err != nil {
		return err
	}
	if port == "" {
		for _, container := range pod.Spec.Containers {
			if len(container.Ports) > 0 {
				port = strconv.Itoa(int(container.Ports[0].ContainerPort))
				break
			}
		}
	}
	if !proxyable(pod.Status.PodIP) {
		return apierrors.NewBadRequest("address not allowed")
	}
	return c.proxyTo(baseURL(scheme, pod.Status.PodIP, port), c.s.cfg.Proxy)
}

func (c *connection) nodeProxy() error {
	scheme, name, port, ok := splitTarget(c.info.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", c.info.Name))
	}
	if err := c.admit(&corev1.NodeProxyOptions{}); err != nil {
		return err
	}
	obj, err := c.caller.Get(name)
	if err != nil {
		return err
	}
	node := obj.(*corev1.Node)
	if port == "" || port == strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)) {
		// A node's address is its own word: the connection must not lead the
		// server to itself (CVE-2022-3294).
		to, err := c.nodeRelay(c.s.cfg.NodeProxy, name)
		if err != nil {
			return err
		}
		return c.proxyTo(&to.target, to.transport)
	}
	ip := registry.NodeAddress(node, corev1.NodeInternalIP)
	if !proxyable(ip) {
		return apierrors.NewBadRequest("address not allowed")
	}
	return c.proxyTo(baseURL(scheme, ip, port), c.s.cfg.Proxy)
}

func (c *connection) serviceProxy() error {
	scheme, name, port, ok := splitTarget(c.info.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", c.info.Name))
	}
	if err := c.admit(&corev1.ServiceProxyOptions{}); err != nil {
		return err
	}
	obj, err := c.caller.Get(name)
	if err != nil {
		return err
	}
	svc := obj.(*corev1.Service)
	portName, err := servicePortName(svc, port, c.info.Name)
	if err != nil {
		return err
	}
	ip, number, err := c.endpoint(c.ctx, svc, portName)
	if err != nil {
		return err
	}
	if ip == "" {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", c.info.Name))
	}
	return c.proxyTo(baseURL(scheme, ip, strconv.Itoa(int(number))), c.s.cfg.Proxy)
}

// servicePortName is the name of the port asked for by name, number or not at
// all.
func servicePortName(svc *corev1.Service, want, id string) (string, error) {
	if want == "" {
		return "", nil
	}
	number, err := strconv.Atoi(want)
	for _, p := range svc.Spec.Ports {
		if p.Name == want || err == nil && int(p.Port) == number {
			return p.Name, nil
		}
	}
	if err != nil {
		return want, nil // no endpoint will have it
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, svc.Name))
}

// endpoint is one ready address of the service, chosen at random, and the
// number of its port.
func (c *connection) endpoint(ctx context.Context, svc *corev1.Service, portName string) (string, int32, error) {
	if c.s.cfg.EndpointSlices == nil {
		return "", 0, nil
	}
	found, err := c.s.cfg.EndpointSlices.List(ctx, watchcache.Query{
		Namespace: svc.Namespace, Labels: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: svc.Name})})
	if err != nil {
		return "", 0, err
	}
	type backend struct {
		ip   string
		port int32
	}
	var ready []backend
	for _, rec := range found.Records {
		obj, err := rec.Object()
		if err != nil {
			return "", 0, err
		}
		slice := obj.(*discoveryv1.EndpointSlice)
		for _, p := range slice.Ports {
			if p.Port == nil || portName != "" && (p.Name == nil || *p.Name != portName) {
				continue
			}
			for _, ep := range slice.Endpoints {
				if ep.Conditions.Ready != nil && !*ep.Conditions.Ready || len(ep.Addresses) == 0 || !proxyable(ep.Addresses[0]) {
					continue
				}
				ready = append(ready, backend{ep.Addresses[0], *p.Port})
			}
		}
	}
	if len(ready) == 0 {
		return "", 0, nil
	}
	b := ready[rand.IntN(len(ready))]
	return b.ip, b.port, nil
}
