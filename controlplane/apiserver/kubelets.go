package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// kubelets is how the API server reaches the kubelets: by the addresses their
// Nodes give, over TLS both ways.
type kubelets struct {
	cache  *watchcache.Cache
	client *tls.Certificate
	ca     *x509.CertPool
	types  []corev1.NodeAddressType // best first

	once      sync.Once
	transport *http.Transport
}

const kubeletPort = 10250

// connect gives the base URL of node's kubelet and what to speak to it with.
func (k *kubelets) connect(_ context.Context, name string) (*url.URL, http.RoundTripper, error) {
	node, ok := watchcache.Read[*corev1.Node](k.cache.Resource(corev1.SchemeGroupVersion.WithResource("nodes")), name)
	if !ok {
		return nil, nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = kubeletPort
	}
	host := registry.NodeAddress(node, k.types...)
	if host == "" {
		return nil, nil, fmt.Errorf("node %s has no address of type %v", name, k.types)
	}
	k.once.Do(func() {
		cfg := &tls.Config{RootCAs: k.ca, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
		if k.client != nil {
			cfg.Certificates = []tls.Certificate{*k.client}
		}
		k.transport = &http.Transport{
			TLSClientConfig:     cfg,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 8,
			IdleConnTimeout:     90 * time.Second,
		}
	})
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(port))}, k.transport, nil
}

// defaultAddresses need no name to be resolved but as the last.
var defaultAddresses = []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName}
