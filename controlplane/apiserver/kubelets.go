package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver/egress"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/keypair"
)

// kubelets is how the API server reaches the kubelets: by the addresses their
// Nodes give, over TLS both ways. A Node's address is its own word, so the
// certificate there must be that of the node asked for, and no address may lead
// to an API server.
type kubelets struct {
	cache  *watchcache.Cache
	client *keypair.File
	ca     *x509.CertPool
	types  []corev1.NodeAddressType // best first
	named  bool                     // a certificate names its node
	guard  *egress.Guard

	once    sync.Once
	streams *keypair.Transport // for logs, exec, attach and portforward
	proxied *keypair.Transport // for nodes/proxy
}

const (
	kubeletPort = 10250
	// kubeletTime bounds a connection to a kubelet and its TLS handshake.
	kubeletTime = 20 * time.Second
)

// KubeletsAs reaches the kubelets as the API server does, with the certificate of
// another client.
func (s *Server) KubeletsAs(client *keypair.File) func(ctx context.Context, node string) (*url.URL, http.RoundTripper, error) {
	k := s.kubelets
	return (&kubelets{cache: k.cache, client: client, ca: k.ca, types: k.types, named: k.named, guard: k.guard}).connect
}

// connect gives the base URL of node's kubelet and what to speak to it with.
func (k *kubelets) connect(_ context.Context, name string) (*url.URL, http.RoundTripper, error) {
	k.once.Do(k.open)
	base, err := k.base(name)
	return base, k.streams, err
}

// proxy is connect for nodes/proxy, which reaches less.
func (k *kubelets) proxy(_ context.Context, name string) (*url.URL, http.RoundTripper, error) {
	k.once.Do(k.open)
	base, err := k.base(name)
	return base, k.proxied, err
}

func (k *kubelets) open() {
	k.streams, k.proxied = k.transport(k.guard.Dial), k.transport(k.guard.DialProxied)
}

// base has the node's name for a host: connections to one node are never taken
// for those to another, though both give the same address.
func (k *kubelets) base(name string) (*url.URL, error) {
	node, ok := watchcache.Read[*corev1.Node](k.cache.Resource(corev1.SchemeGroupVersion.WithResource("nodes")), name)
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = kubeletPort
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(name, strconv.Itoa(port))}, nil
}

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

func (k *kubelets) transport(to dial) *keypair.Transport {
	return keypair.NewTransport(&http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, kubeletTime)
			defer cancel()
			return k.dial(ctx, network, address, to)
		},
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 1 << 20,
	}, k.client)
}

// dial connects to the kubelet of the node that the address names.
func (k *kubelets) dial(ctx context.Context, network, address string, to dial) (net.Conn, error) {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	node, ok := watchcache.Read[*corev1.Node](k.cache.Resource(corev1.SchemeGroupVersion.WithResource("nodes")), name)
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	host := registry.NodeAddress(node, k.types...)
	if host == "" {
		return nil, fmt.Errorf("node %s has no address of type %v", name, k.types)
	}
	conn, err := to(ctx, network, net.JoinHostPort(host, port))
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{RootCAs: k.ca, ServerName: host, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if k.client != nil {
		cfg.GetClientCertificate = k.client.Client
	}
	if k.named {
		cfg.VerifyConnection = func(s tls.ConnectionState) error { return isOfNode(s.PeerCertificates[0], name) }
	}
	secured := tls.Client(conn, cfg)
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secured, nil
}

// isOfNode refuses a certificate that is not the one of a node's kubelet. Pure.
func isOfNode(cert *x509.Certificate, node string) error {
	if want := "system:node:" + node; cert.Subject.CommonName != want || !slices.Contains(cert.Subject.Organization, user.NodesGroup) {
		return fmt.Errorf("tls: the certificate is of %q, not of %q", cert.Subject.CommonName, want)
	}
	return nil
}

// defaultAddresses need no name to be resolved but as the last.
var defaultAddresses = []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName}
