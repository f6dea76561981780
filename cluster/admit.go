package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"knarr/controlplane/etcd"
)

// Where servers ask, on the API server's port: for what all servers share, for
// a place in etcd, and to be let go.
const (
	joinServerPath = "/v1-knarr/server/enlist"
	memberPath     = "/v1-knarr/server/member"
	leavePath      = "/v1-knarr/server/leave"
)

// serverRequest is what a server sends; the secret proves that it may have the
// keys of the cluster.
type serverRequest struct {
	Secret   string     `json:"secret"`
	NodeName string     `json:"nodeName"`
	NodeIP   netip.Addr `json:"nodeIP"`
	PeerURL  string     `json:"peerURL,omitempty"`
}

// serverJoinResponse is what a server gets: the files that all servers share, by their
// names below tls/, and how they are set.
type serverJoinResponse struct {
	Files    map[string][]byte `json:"files"`
	Settings settings          `json:"settings"`
	Nodes    string            `json:"nodes"`   // the secret of joining nodes
	Servers  string            `json:"servers"` // and of servers
}

// The files that all servers share.
const encryptionFile = "encryption.yaml"

var sharedFiles = []string{
	"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "etcd-ca.crt", "etcd-ca.key", "service-account.key",
}

// A serverAdmission admits further servers to the cluster.
type serverAdmission struct {
	server *Server
	member *etcd.Member
	token  joinToken // of servers
	client kubernetes.Interface
	own    []string
	mu     sync.Mutex // one at a time
}

// A loggedAnswer is an answer to a request, with the check of the right to it
// and the message that the log gets once it is given.
type loggedAnswer struct {
	message string
	prove   authenticate
}

// answers are what servers may ask for, by path.
func (r *serverAdmission) answers() map[string]loggedAnswer {
	answers := map[string]loggedAnswer{}
	for path, a := range map[string]struct {
		message string
		do      func(context.Context, *serverRequest) (any, error)
	}{
		joinServerPath: {"server gets the cluster's keys", r.join},
		memberPath:     {"server joins etcd", r.admit},
		leavePath:      {"server leaves", r.leave},
	} {
		answers[path] = loggedAnswer{a.message, func(_ context.Context, body []byte) (string, func(context.Context) (any, error), error) {
			var req serverRequest
			if err := read(body, &req); err != nil {
				return "", nil, err
			}
			return req.NodeName, func(ctx context.Context) (any, error) {
				r.mu.Lock()
				defer r.mu.Unlock()
				return a.do(ctx, &req)
			}, r.proven(&req)
		}}
	}
	return answers
}

// proven refuses who does not have the servers' secret.
func (r *serverAdmission) proven(req *serverRequest) error {
	nodes := secret(req.Secret, r.server.joins.token.secret)
	switch {
	case secret(req.Secret, r.token.secret) && r.member == nil:
		return refuse(http.StatusConflict, "%v", errAlone)
	case secret(req.Secret, r.token.secret):
		return nil
	case nodes:
		return refuse(http.StatusUnauthorized, "--token is that of nodes, which may not have the cluster's keys; copy server-token from the server's --data-dir")
	}
	return &refusal{http.StatusUnauthorized, "--token: this server has another secret; copy server-token from the server's --data-dir", errWrongSecret}
}

// free refuses names and addresses that are somebody's.
func (r *serverAdmission) free(ctx context.Context, req *serverRequest) error {
	if err := mayBeCalled(req.NodeName, []netip.Addr{req.NodeIP}, r.own); err != nil {
		return err
	}
	nodes, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return unlike(nodes.Items, req)
}

// unlike refuses the name and the address of a node that is there. Pure.
func unlike(nodes []corev1.Node, req *serverRequest) error {
	for i := range nodes {
		n := &nodes[i]
		if n.Name == req.NodeName {
			return refuse(http.StatusConflict, "--node-name %s is taken by a node; give another name, or kubectl delete node %s if that machine is gone", n.Name, n.Name)
		}
		for _, a := range n.Status.Addresses {
			if a.Address == req.NodeIP.String() {
				return refuse(http.StatusConflict, "--node-ip %s is that of node %s; give this machine's, or kubectl delete node %s if that machine is gone", a.Address, n.Name, n.Name)
			}
		}
	}
	return nil
}

// join gives a new server the files and settings that all servers share.
func (r *serverAdmission) join(ctx context.Context, req *serverRequest) (any, error) {
	if err := r.free(ctx, req); err != nil {
		return nil, err
	}
	s := r.server
	if _, err := openAuthority(s.layout, etcdCA); err != nil {
		return nil, err
	}
	w := &serverJoinResponse{Files: map[string][]byte{}, Settings: s.opts.settings(), Nodes: s.joins.token.secret, Servers: r.token.secret}
	for _, name := range sharedFiles {
		b, err := os.ReadFile(s.layout.tls(name))
		if err != nil {
			return nil, err
		}
		w.Files[name] = b
	}
	if file := s.opts.api.EncryptionFile(); file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		w.Files[encryptionFile] = b
	}
	return w, nil
}

// admit gives a server a place in etcd, which opens to others if this is the
// first.
func (r *serverAdmission) admit(ctx context.Context, req *serverRequest) (any, error) {
	if err := r.free(ctx, req); err != nil {
		return nil, err
	}
	u, err := url.Parse(req.PeerURL)
	if err != nil || u.Scheme != "https" || u.Hostname() != req.NodeIP.String() {
		return nil, refuse(http.StatusBadRequest, "the peer's URL %q is not one of --node-ip %s", req.PeerURL, req.NodeIP)
	}
	if err := r.server.grow(ctx); err != nil {
		return nil, err
	}
	all, err := r.member.Add(ctx, req.NodeName, req.PeerURL)
	if errors.Is(err, etcd.ErrTaken) {
		return nil, refuse(http.StatusConflict, "--node-name %s or its address is that of a server that is a member; knarr down --purge on that machine, or kubectl delete node %s, removes it first", req.NodeName, req.NodeName)
	}
	return all, err
}

// leave lets a server go for good.
func (r *serverAdmission) leave(ctx context.Context, req *serverRequest) (any, error) {
	if slices.Contains(r.own, req.NodeName) {
		return nil, refuse(http.StatusConflict, "%s is this server itself; ask another", req.NodeName)
	}
	if err := r.member.Remove(ctx, req.NodeName); err != nil {
		return nil, refuse(http.StatusConflict, "%v", err)
	}
	err := r.client.CoreV1().Nodes().Delete(ctx, req.NodeName, metav1.DeleteOptions{})
	return struct{}{}, ignoreNotFound(err)
}

// etcdCA signs the certificates of etcd's members.
const etcdCA, etcdUser = "etcd-ca", "knarr-etcd"

// network is how this server's etcd and the others' reach each other.
func (s *Server) network() (*etcd.Network, error) {
	ca, err := openAuthority(s.layout, etcdCA)
	if err != nil {
		return nil, err
	}
	ip := s.opts.nodeIPs[0]
	if _, err := ca.issue(s.layout, leaf{name: "etcd-peer", user: etcdUser, hosts: []string{ip.String()}, peer: true}); err != nil {
		return nil, err
	}
	return &etcd.Network{
		URL:      url.URL{Scheme: "https", Host: netip.AddrPortFrom(ip, uint16(s.opts.EtcdPeerPort)).String()},
		CertFile: s.layout.tls("etcd-peer.crt"), KeyFile: s.layout.tls("etcd-peer.key"), CAFile: s.layout.tls(etcdCA + ".crt"), User: etcdUser,
	}, nil
}

// grow opens etcd to others, and remembers it first: after a crash there may be
// others.
func (s *Server) grow(ctx context.Context) error {
	n, err := s.network()
	if err != nil {
		return err
	}
	if err := s.remember(func(p *peerState) { p.Several = true }); err != nil {
		return err
	}
	// The caller may hang up; a member half started helps nobody.
	if err := s.member.Grow(context.WithoutCancel(ctx), s.opts.NodeName, n); err != nil {
		return fmt.Errorf("%w; is another program using --etcd-peer-port %d?", err, s.opts.EtcdPeerPort)
	}
	return nil
}
