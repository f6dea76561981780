package endpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	proxyutil "k8s.io/apimachinery/pkg/util/proxy"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// A relay sends one request on and its answer back. A connection is turned
// into a tunnel only after the backend has agreed to the upgrade (101); any
// other answer is passed on as an answer, so that a refused upgrade leaves no
// tunnel to the backend. Redirects are never followed.
type relay struct {
	target    url.URL
	transport http.RoundTripper
	// prefix is the path under which the client sees the backend; redirects
	// and links are rewritten to it. Empty: redirects are refused.
	prefix string
	// plainText is a log's: its type is text and failures become Status.
	plainText bool
	// failure makes a Status of not reaching the backend.
	failure func(error) error
}

// credentials are never passed on: the backend is somebody else's.
var credentials = []string{"Authorization", "Cookie2", "Impersonate-User", "Impersonate-Group", "Impersonate-Uid"}

func (l *relay) serve(c *call) {
	proxy := &httputil.ReverseProxy{
		Transport:     l.transport,
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			target := l.target
			p.Out.URL = &target
			p.Out.Host = target.Host
			for _, h := range credentials {
				p.Out.Header.Del(h)
			}
			for h := range p.Out.Header {
				if strings.HasPrefix(h, "Impersonate-") || strings.HasPrefix(h, "X-Remote-") {
					p.Out.Header.Del(h)
				}
			}
			if l.prefix != "" {
				p.Out.Header.Set("X-Forwarded-Uri", p.In.URL.Path)
				p.Out.Header.Set("X-Forwarded-Host", p.In.Host)
				scheme := "http"
				if p.In.TLS != nil {
					scheme = "https"
				}
				p.Out.Header.Set("X-Forwarded-Proto", scheme)
				if ip, _, err := net.SplitHostPort(p.In.RemoteAddr); err == nil {
					p.Out.Header.Set("X-Forwarded-For", ip)
				}
			}
		},
		ModifyResponse: l.check,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // the client has left
			}
			var status apierrors.APIStatus
			if !errors.As(err, &status) {
				err = l.failure(err)
			}
			writeStatus(w, r, err)
		},
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	proxy.ServeHTTP(c.w, c.r)
}

// maxReason bounds what is read of a backend's refusal.
const maxReason = 2048

func (l *relay) check(resp *http.Response) error {
	if resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.StatusCode != http.StatusNotModified {
		if l.prefix == "" {
			return statusError(http.StatusBadGateway, metav1.StatusReasonUnknown, "the backend attempted to redirect this request, which is not permitted")
		}
	}
	if l.prefix != "" { // who may read an answer is not the backend's to say
		for _, h := range []string{"Credentials", "Headers", "Methods", "Origin"} {
			resp.Header.Del("Access-Control-Allow-" + h)
		}
	}
	if !l.plainText {
		return nil
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxReason))
		if err != nil {
			return err
		}
		return apierrors.NewGenericServerResponse(resp.StatusCode, "GET", corev1.Resource(""), "", strings.TrimSpace(string(text)), 0, true)
	}
	resp.Header.Set("Content-Type", "text/plain")
	resp.Header.Del("Content-Length")
	return nil
}

// maxPage bounds a page of a backend's whose links are rewritten, for which it
// is held whole.
const maxPage = 16 << 20

// pages bounds the pages that a transport gets.
type pages struct{ http.RoundTripper }

func (p pages) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := p.RoundTripper.RoundTrip(r)
	if err == nil && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxPage)
	}
	return resp, err
}

// rest is the path behind the proxy subresource, as it was sent.
func (c *call) rest() (prefix, rest string) {
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
func (c *call) proxyTo(base *url.URL, transport http.RoundTripper) error {
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
	within := &proxyutil.Transport{PathPrepend: prefix, RoundTripper: pages{transport}}
	l := &relay{target: target, transport: within, prefix: prefix, failure: func(err error) error {
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
func proxyable(ip string) bool {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return false
	}
	addr = addr.Unmap()
	return !addr.IsLoopback() && !addr.IsLinkLocalUnicast() && !addr.IsLinkLocalMulticast() && !addr.IsInterfaceLocalMulticast() && !addr.IsUnspecified()
}

// proxyableHost is proxyable for a name, too: all its addresses must be.
func proxyableHost(ctx context.Context, host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return proxyable(host)
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(addrs) == 0 {
		return false
	}
	for _, a := range addrs {
		if !proxyable(a.String()) {
			return false
		}
	}
	return true
}

func (c *call) proxyTransport() http.RoundTripper {
	if c.s.cfg.Proxy != nil {
		return c.s.cfg.Proxy
	}
	return c.s.transport
}

func (c *call) podProxy() error {
	scheme, name, port, ok := splitTarget(c.info.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", c.info.Name))
	}
	if err := c.connect(&corev1.PodProxyOptions{}); err != nil {
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
	return c.proxyTo(baseURL(scheme, pod.Status.PodIP, port), c.proxyTransport())
}

func (c *call) nodeProxy() error {
	scheme, name, port, ok := splitTarget(c.info.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", c.info.Name))
	}
	if err := c.connect(&corev1.NodeProxyOptions{}); err != nil {
		return err
	}
	rec, err := c.store.Get(c.ctx, name, "")
	if err != nil {
		return c.fromCache(err, name)
	}
	obj, err := rec.Object()
	if err != nil {
		return err
	}
	node := obj.(*corev1.Node)
	if port == "" || port == strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)) {
		to, err := c.kubelet(name)
		if err != nil {
			return err
		}
		// A node's address is its own word: it must not lead the server to
		// itself (CVE-2022-3294).
		if !proxyableHost(c.ctx, to.target.Hostname()) {
			return apierrors.NewBadRequest("address not allowed")
		}
		return c.proxyTo(&to.target, to.transport)
	}
	ip := registry.NodeAddress(node, corev1.NodeInternalIP)
	if !proxyable(ip) {
		return apierrors.NewBadRequest("address not allowed")
	}
	return c.proxyTo(baseURL(scheme, ip, port), c.proxyTransport())
}

func (c *call) serviceProxy() error {
	scheme, name, port, ok := splitTarget(c.info.Name)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", c.info.Name))
	}
	if err := c.connect(&corev1.ServiceProxyOptions{}); err != nil {
		return err
	}
	rec, err := c.store.Get(c.ctx, c.keyOf(c.info.Namespace, name), "")
	if err != nil {
		return c.fromCache(err, name)
	}
	obj, err := rec.Object()
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
	return c.proxyTo(baseURL(scheme, ip, strconv.Itoa(int(number))), c.proxyTransport())
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
func (c *call) endpoint(ctx context.Context, svc *corev1.Service, portName string) (string, int32, error) {
	e := c.s.table.Load().entries[discoveryv1.SchemeGroupVersion.WithResource("endpointslices")]
	if e == nil {
		return "", 0, nil
	}
	found, err := e.store.List(ctx, watchcache.Query{
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
