package cluster

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"knarr/addons/gateway"
	"knarr/addons/loadbalancer/announcer"
	"knarr/addons/localstorage"
	"knarr/controlplane/etcd"
)

// Where nodes ask, on the API server's port.
const (
	caPath   = "/cacerts"
	joinPath = "/v1-knarr/join"
)

// joinRequest is what a node sends. It proves with the signature of the request
// that the key is its own, and that it may join with the secret, or by a key that
// is already that of the node.
type joinRequest struct {
	Secret   string       `json:"secret"`
	NodeName string       `json:"nodeName"`
	NodeIPs  []netip.Addr `json:"nodeIPs"`
	CSR      []byte       `json:"csr"` // DER
}

// joinReply is what it gets: a certificate, in DER, for each of its parts.
type joinReply struct {
	Certificates map[string][]byte `json:"certificates"`
	Facts        facts             `json:"facts"`
}

// nodeLeaves are the certificates of a node that joins, all of one key.
func nodeLeaves(name string, ips []netip.Addr) []leaf {
	return []leaf{
		nodeClientLeaf(name),
		kubeletLeaf(name, ips),
		{name: "kube-proxy", user: "system:kube-proxy"},
		{name: "dns", user: serviceaccount.MakeUsername(metav1.NamespaceSystem, "kube-dns"), groups: serviceaccount.MakeGroupNames(metav1.NamespaceSystem)},
		{name: "local-storage", user: localstorage.User(name), groups: []string{localstorage.Group}},
		{name: "gateway", user: gateway.User(name), groups: []string{gateway.Group}},
		{name: "address-announcer", user: announcer.User(name), groups: []string{announcer.Group}},
	}
}

// nodeClientName is the certificate that a node is a client with.
const nodeClientName = "kubelet-client"

func nodeClientLeaf(name string) leaf {
	return leaf{name: nodeClientName, user: "system:node:" + name, groups: []string{"system:nodes"}}
}

// kubeletLeaf is the certificate that a node's kubelet serves with.
func kubeletLeaf(name string, ips []netip.Addr) leaf {
	l := leaf{name: "kubelet", user: "system:node:" + name, groups: []string{"system:nodes"}, hosts: []string{name, "127.0.0.1"}}
	for _, ip := range ips {
		l.hosts = append(l.hosts, ip.String())
	}
	return l
}

// joins lets nodes in, and further servers.
type joins struct {
	ca      *authority
	token   joinToken
	own     []string // names and addresses of the API server
	facts   facts
	client  kubernetes.Interface
	slots   chan struct{} // taken by requests that have the secret
	pending pendingBodies // requests that may have it
	failed  failedAttempts
	servers *serverAdmission
}

// maxJoins bounds the requests with the secret that are under way, and joinTime
// how long one may take.
const (
	maxJoins = 16
	joinTime = 10 * time.Second
)

func (s *Server) newJoins(member *etcd.Member) (*joins, error) {
	nodes, servers, err := s.layout.tokens(&s.opts, s.ca.pem)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(s.as("knarr", "system:knarr", user.SystemPrivilegedGroup))
	if err != nil {
		return nil, err
	}
	own := slices.DeleteFunc(s.opts.hosts(), func(h string) bool { return s.opts.DisableAgent && h == s.opts.NodeName })
	return &joins{
		ca: s.ca, token: nodes, own: own, facts: s.facts(), client: client, slots: make(chan struct{}, maxJoins),
		servers: &serverAdmission{server: s, member: member, token: servers, client: client, own: own},
	}, nil
}

func (j *joins) paths() map[string]http.Handler {
	paths := map[string]http.Handler{
		caPath: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-pem-file")
			_, _ = w.Write(j.ca.pem)
		}),
		joinPath: j.handler("node", "node joins", func(ctx context.Context, body []byte) (string, func(context.Context) (any, error), error) {
			var req joinRequest
			if err := read(body, &req); err != nil {
				return "", nil, err
			}
			return req.NodeName, func(ctx context.Context) (any, error) { return j.join(ctx, &req) }, j.proven(ctx, &req)
		}),
	}
	if j.servers != nil {
		for path, a := range j.servers.answers() {
			paths[path] = j.handler("server", a.message, a.prove)
		}
	}
	return paths
}

// refusal is an answer that is the joining user's affair.
type refusal struct {
	code  int
	text  string
	cause error
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.cause }

func refuse(code int, format string, args ...any) error {
	return &refusal{code: code, text: fmt.Sprintf(format, args...)}
}

// maxJoin bounds a request, which is a few hundred bytes, and maxName what the log
// repeats of a requesting machine's name.
const (
	maxJoin = 16 << 10
	maxName = 253
)

// An authenticate checks the secret of a request; it returns the name of the
// requesting machine and what answers it.
type authenticate func(ctx context.Context, body []byte) (who string, answer func(context.Context) (reply any, err error), err error)

// errWrongSecret says that a request does not have the secret.
var errWrongSecret = errors.New("wrong secret")

// secret compares what was given with what it should be, and takes as long
// whatever it is.
func secret(given, want string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(want))
	return want != "" && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func read(body []byte, to any) error {
	if err := json.Unmarshal(body, to); err != nil {
		return &refusal{http.StatusBadRequest, fmt.Sprintf("this is no request to join: %v", err), errWrongSecret}
	}
	return nil
}

// handler handles requests from machines that have not authenticated yet: bodies
// are small, time is short, and addresses that sent wrong secrets are refused
// for a while. Only a request with the right secret takes one of the few places
// for requests under way. The answer names the machine that asks; message goes to the log.
func (j *joins) handler(what, message string, authenticate authenticate) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "nodes join with POST", http.StatusMethodNotAllowed)
			return
		}
		from := source(r.RemoteAddr)
		if j.failed.exceeded(from, time.Now()) {
			w.Header().Set("Connection", "close") // the body is not waited for
			http.Error(w, "too many wrong tokens from this address; wait a minute", http.StatusTooManyRequests)
			return
		}
		body, err := j.pending.body(w, r, from)
		if err != nil {
			j.failed.add(from, time.Now())
			w.Header().Set("Connection", "close")
			code := http.StatusBadRequest
			if errors.Is(err, os.ErrDeadlineExceeded) {
				code = http.StatusRequestTimeout
			}
			http.Error(w, "this is no request to join: "+err.Error(), code)
			return
		}
		who, answer, err := authenticate(r.Context(), body)
		who = who[:min(len(who), maxName)]
		var reply any
		if errors.Is(err, errWrongSecret) {
			j.failed.add(from, time.Now())
		}
		if err == nil {
			select {
			case j.slots <- struct{}{}:
				defer func() { <-j.slots }()
			default:
				http.Error(w, "too many nodes join at once", http.StatusServiceUnavailable)
				return
			}
			ctx, cancel := context.WithTimeout(r.Context(), joinTime)
			defer cancel()
			reply, err = answer(ctx)
		}
		if no, ok := errors.AsType[*refusal](err); ok {
			slog.WarnContext(r.Context(), "refuse a "+what, what, who, "from", r.RemoteAddr, "why", no.text)
			http.Error(w, no.text, no.code)
			return
		}
		if err != nil {
			slog.ErrorContext(r.Context(), "let a "+what+" in", what, who, "from", r.RemoteAddr, "err", err)
			http.Error(w, "the server could not do it now; it says why in its log", http.StatusServiceUnavailable)
			return
		}
		slog.InfoContext(r.Context(), message, what, who, "from", r.RemoteAddr)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(reply)
	}
}

// proven refuses who has neither the secret nor the key of a node of the cluster.
func (j *joins) proven(ctx context.Context, req *joinRequest) error {
	if secret(req.Secret, j.token.secret) {
		return nil
	}
	_, key, err := req.key()
	if err == nil {
		var member bool
		if member, err = j.member(ctx, req.NodeName, key); err != nil {
			return err
		}
		if member {
			return nil
		}
	}
	return unproven(req)
}

// unproven refuses a request by what is wrong with it: it has no secret or another.
func unproven(req *joinRequest) error {
	if req.Secret == "" {
		return &refusal{http.StatusUnauthorized, "--token: must be given, for this machine's key is not that of node " + strconv.Quote(req.NodeName[:min(len(req.NodeName), maxName)]) + " any more; it is in node-token in the server's --data-dir", errWrongSecret}
	}
	return &refusal{http.StatusUnauthorized, "--token: this server has another secret; copy node-token from the server's --data-dir", errWrongSecret}
}

// member reports whether a key is on record as that of a Node that is there: who
// deletes a Node takes the key its right to come back, also if a Node of this name is
// made anew. The Node is read after the record, which may be of a younger one else.
func (j *joins) member(ctx context.Context, name, key string) (bool, error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return false, nil
	}
	records, err := j.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, keysName, metav1.GetOptions{})
	if err != nil {
		return false, ignoreNotFound(err)
	}
	r := parseKeyRecord(records.Data[name])
	if r.key != key {
		return false, nil
	}
	node, err := j.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	return err == nil && r.of(node.UID), ignoreNotFound(err)
}

// key is the node's own, which signed the request, and what it is on record as.
func (r *joinRequest) key() (public crypto.PublicKey, record string, err error) {
	csr, err := x509.ParseCertificateRequest(r.CSR)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, "", err
	}
	spki, err := x509.MarshalPKIXPublicKey(csr.PublicKey)
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(spki)
	return csr.PublicKey, hex.EncodeToString(sum[:]), nil
}

// join decides on a request and signs what it asks for.
func (j *joins) join(ctx context.Context, req *joinRequest) (*joinReply, error) {
	public, key, err := req.key()
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the node's key: %v", err)
	}
	servers, err := serverAddresses(ctx, j.client)
	if err != nil {
		return nil, err
	}
	if err := mayBeCalled(req.NodeName, req.NodeIPs, append(servers, j.own...)); err != nil {
		return nil, err
	}
	if err := j.remember(ctx, req, key); err != nil {
		return nil, err
	}
	reply := &joinReply{Facts: j.facts, Certificates: map[string][]byte{}}
	for _, l := range nodeLeaves(req.NodeName, req.NodeIPs) {
		if reply.Certificates[l.name], err = j.ca.sign(public, l); err != nil {
			return nil, err
		}
	}
	return reply, nil
}

// mayBeCalled refuses names and addresses that would make a node's certificate
// pass for the API server's. Pure.
func mayBeCalled(name string, ips []netip.Addr, own []string) error {
	if e := validation.IsDNS1123Subdomain(name); len(e) > 0 {
		return refuse(http.StatusBadRequest, "--node-name %q: %s", name, e[0])
	}
	if slices.ContainsFunc(own, func(o string) bool { return strings.EqualFold(o, name) }) {
		return refuse(http.StatusConflict, "--node-name %s is a name of the server itself; give another", name)
	}
	if len(ips) == 0 || len(ips) > 4 {
		return refuse(http.StatusBadRequest, "--node-ip: a node has one to four addresses")
	}
	for _, ip := range ips {
		if !ip.IsValid() || ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() {
			return refuse(http.StatusBadRequest, "--node-ip %s: other nodes do not reach it; give an address that they do", ip)
		}
		// Of several ways to write an address only one is taken: a certificate for
		// another would pass for this one.
		if ip.Is4In6() || ip.Zone() != "" {
			return refuse(http.StatusBadRequest, "--node-ip %s: give it as %s", ip, ip.Unmap().WithZone(""))
		}
		if slices.ContainsFunc(own, func(o string) bool { a, err := netip.ParseAddr(o); return err == nil && a.Unmap() == ip }) {
			return refuse(http.StatusConflict, "--node-ip %s is the server's own; give this machine's", ip)
		}
	}
	return nil
}

// serverAddresses are those of the cluster's API servers.
func serverAddresses(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	slice, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return sliceAddresses(slice), nil
}

func sliceAddresses(slice *discoveryv1.EndpointSlice) (all []string) {
	for _, e := range slice.Endpoints {
		all = append(all, e.Addresses...)
	}
	return all
}

// remember writes down whose name it is from now on, unless it is another's.
func (j *joins) remember(ctx context.Context, req *joinRequest, key string) error {
	byToken := secret(req.Secret, j.token.secret)
	configMaps := j.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		have, err := configMaps.Get(ctx, keysName, metav1.GetOptions{})
		absent := apierrors.IsNotFound(err)
		if absent {
			have = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: keysName, Namespace: metav1.NamespaceSystem}}
		} else if err != nil {
			return err
		}
		// After the records: one that is of a Node which is not listed is of a deleted one.
		nodes, err := j.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		keys, err := admit(have.Data, nodes.Items, req, key, byToken, time.Now())
		if err != nil || keys == nil {
			return err
		}
		have.Data = keys
		if absent {
			_, err = configMaps.Create(ctx, have, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				err = apierrors.NewConflict(corev1.Resource("configmaps"), keysName, err)
			}
			return err
		}
		_, err = configMaps.Update(ctx, have, metav1.UpdateOptions{})
		return err
	})
}

// minJoinAge is how long a name is kept for a node that has not yet registered.
const minJoinAge = 5 * time.Minute

// admit says which keys are on record after the request, nil for no change. A
// name belongs to its key for as long as its Node is there; what is on record
// of Nodes that are gone is dropped. Who has the token may join with a Node that was
// made anew, and the record is of this one then; the key alone is not enough. Pure.
func admit(records map[string]string, nodes []corev1.Node, req *joinRequest, key string, byToken bool, now time.Time) (map[string]string, error) {
	there := map[string]types.UID{}
	for i := range nodes {
		n := &nodes[i]
		there[n.Name] = n.UID
		if n.Name == req.NodeName {
			continue
		}
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && slices.Contains(req.NodeIPs, ip) {
				return nil, refuse(http.StatusConflict, "--node-ip %s is that of node %s; give this machine's, or kubectl delete node %s if that machine is gone", ip, n.Name, n.Name)
			}
		}
	}
	kept := map[string]string{}
	for name, record := range records {
		r := parseKeyRecord(record)
		at, err := time.Parse(time.RFC3339, r.since)
		young := r.node == "" && err == nil && now.Sub(at) < minJoinAge
		if _, exists := there[name]; exists || young {
			kept[name] = record
		}
	}
	record, known := kept[req.NodeName]
	r := parseKeyRecord(record)
	node, exists := there[req.NodeName]
	switch {
	case known && r.key != key:
		return nil, refuse(http.StatusConflict, "--node-name %s is taken by a machine with another key; give another name, or kubectl delete node %s if that machine is gone", req.NodeName, req.NodeName)
	case !byToken && !(known && exists && r.of(node)): // deleted since the request was let in
		return nil, unproven(req)
	case !known && exists:
		return nil, refuse(http.StatusConflict, "--node-name %s is taken by a node that did not join with a token; give another name, or kubectl delete node %s if it is gone", req.NodeName, req.NodeName)
	case !known:
		r = keyRecord{key: key, since: now.UTC().Format(time.RFC3339)}
	case exists:
		r.node = node
	}
	if kept[req.NodeName] = r.String(); maps.Equal(kept, records) {
		return nil, nil
	}
	return kept, nil
}
