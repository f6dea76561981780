package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"knarr/internal/keypair"
	"knarr/node/containerruntime"
	"knarr/node/kubelet"
)

const (
	// maxPeers bounds the nodes that are asked for an image, those first that say they
	// have it, and knownPeers the nodes that are read to choose them from.
	maxPeers, knownPeers = 16, 500
	// peersAge is for how long the list of nodes is used again: many pods may wait for
	// images at once.
	peersAge = 10 * time.Second
	// peerDial and peerHeader bound how long a node that is gone delays the others.
	peerDial, peerHeader = 2 * time.Second, 10 * time.Second
)

var errNoPeers = errors.New("there is no other node that is ready")

// peerImages gets images from the other nodes.
type peerImages struct {
	self   string
	client kubernetes.Interface
	http   *http.Client

	mu    sync.Mutex
	nodes []corev1.Node
	at    time.Time
}

// shareImages lets a kubelet give its images to other nodes and get theirs. Nodes show each
// other their certificates; the names of nodes are those of another of its users, as a node
// may read only itself.
func (n *node) shareImages(cfg *kubelet.Config, rt *containerruntime.Runtime, conn *grpc.ClientConn) error {
	images, err := rt.Images(conn)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(n.as.proxy)
	if err != nil {
		return err
	}
	mine, err := keypair.Open(n.layout.tls(nodeClientName+".crt"), n.clientKey)
	if err != nil {
		return err
	}
	p := &peerImages{self: n.opts.NodeName, client: client, http: &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: peerDial}).DialContext,
		TLSClientConfig: &tls.Config{
			RootCAs: n.ca, MinVersion: tls.VersionTLS12,
			GetClientCertificate: mine.Client,
		},
		TLSHandshakeTimeout: peerDial, ResponseHeaderTimeout: peerHeader, IdleConnTimeout: peersAge, MaxResponseHeaderBytes: 64 << 10,
	}}}
	secret := n.opts.mirrors.Secret
	cfg.ShareImages = func(public func(image, id string) bool) http.Handler {
		return images.Share(func(image, id string) bool { return !secret(image) && public(image, id) })
	}
	cfg.PullFromPeers = func(ctx context.Context, image string) error {
		addresses, err := p.addresses(ctx, image)
		if err != nil {
			return err
		}
		return images.PullFrom(ctx, image, addresses, p.http, n.facts.TrustedTags)
	}
	return nil
}

// addresses are those of the nodes to ask for an image.
func (p *peerImages) addresses(ctx context.Context, image string) ([]string, error) {
	ref, err := reference.ParseDockerRef(image) // as nodes show their images
	if err != nil {
		return nil, err
	}
	nodes, err := p.list(ctx)
	if err != nil {
		return nil, err
	}
	addresses := peersFor(nodes, p.self, ref.String())
	if len(addresses) == 0 {
		return nil, errNoPeers
	}
	return addresses, nil
}

// list is the nodes as they were peersAge ago at most. It is read without the lock: an API
// server that does not answer holds up no pull but the one that waits for it.
func (p *peerImages) list(ctx context.Context) ([]corev1.Node, error) {
	p.mu.Lock()
	nodes, at := p.nodes, p.at
	p.mu.Unlock()
	if time.Since(at) <= peersAge {
		return nodes, nil
	}
	all, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: knownPeers})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes, p.at = all.Items, time.Now()
	return p.nodes, nil
}

// peersFor are the addresses of other nodes' kubelets, those first that say they have an
// image: a node tells of its largest ones only. Pure.
func peersFor(nodes []corev1.Node, self, image string) []string {
	type peer struct {
		address string
		has     bool
	}
	var peers []peer
	for i := range nodes {
		n := &nodes[i]
		port := n.Status.DaemonEndpoints.KubeletEndpoint.Port
		at := slices.IndexFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
		if n.Name == self || port == 0 || at < 0 || !isReady(n) {
			continue
		}
		address := net.JoinHostPort(n.Status.Addresses[at].Address, strconv.Itoa(int(port)))
		if slices.ContainsFunc(peers, func(p peer) bool { return p.address == address }) {
			continue // each has one voice
		}
		has := slices.ContainsFunc(n.Status.Images, func(i corev1.ContainerImage) bool { return slices.Contains(i.Names, image) })
		peers = append(peers, peer{address, has})
	}
	slices.SortStableFunc(peers, func(a, b peer) int {
		order := map[bool]int{true: 0, false: 1}
		return cmp.Compare(order[a.has], order[b.has])
	})
	addresses := make([]string, 0, maxPeers)
	for _, p := range peers[:min(len(peers), maxPeers)] {
		addresses = append(addresses, p.address)
	}
	return addresses
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
