// Package connect is the connections that the API server opens for its clients:
// logs, exec, attach and port-forward of pods by way of their kubelets, and
// proxies to pods, Services and nodes. It reads the object that a request names
// through its caller, and the EndpointSlices of a Service; it writes nothing but
// the answer. What a kubelet or a backend sends is bounded before it is parsed,
// and leads nobody elsewhere.
package connect

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"knarr/controlplane/apiserver/egress"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
)

// Config is what a Server needs. The zero value of a field means its default.
type Config struct {
	// Kubelet is how to reach a node's kubelet, for logs and exec, and NodeProxy
	// for nodes/proxy, which reaches less. Default: not at all.
	Kubelet, NodeProxy func(ctx context.Context, node string) (*url.URL, http.RoundTripper, error)
	// Dial connects to pods, services and nodes for proxies. Default: to whatever
	// is not of this host alone.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Proxy is the transport for services/proxy and pods/proxy. Default: a
	// plain one that reuses no proxy settings and checks no certificates.
	Proxy http.RoundTripper
	// Allows reports whether a user may do a request's action under another verb,
	// too. Default: everybody may.
	Allows func(ctx context.Context, verb string) (allowed bool, reason string, err error)
	// EndpointSlices are the stored ones. Default: Services have no endpoints.
	EndpointSlices *watchcache.Resource
	// WriteStatus answers with an error, once the backend has been asked.
	WriteStatus func(w http.ResponseWriter, r *http.Request, err error)
}

// A Caller is what the handler of a request knows of it. Its errors are Status.
type Caller interface {
	// Admit asks admission about the options of the connection.
	Admit(opts runtime.Object) error
	// Get is the object of that name of the request's resource, in the request's
	// namespace. It is shared: nobody may change it.
	Get(name string) (runtime.Object, error)
}

// A Server opens connections. It is safe for use by many.
type Server struct {
	cfg    Config
	places chan struct{} // taken by pages of backends while they are rewritten
}

// New makes a Server; it starts nothing.
func New(cfg Config) *Server {
	if cfg.Dial == nil {
		cfg.Dial = new(egress.Guard).DialProxied
	}
	if cfg.Proxy == nil {
		// Proxies to pods check no certificates, nobody could have issued them;
		// HTTP/2 has no upgrades.
		cfg.Proxy = &http.Transport{
			DialContext:     cfg.Dial,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			MaxIdleConns:    32, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: false, MaxResponseHeaderBytes: 1 << 20,
			TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		}
	}
	return &Server{cfg: cfg, places: make(chan struct{}, maxPages)}
}

// A connection is one request on its way.
type connection struct {
	s      *Server
	w      http.ResponseWriter
	r      *http.Request
	ctx    context.Context
	info   *request.Info
	caller Caller
}

// connections are the subresources that open one, by "resource/subresource".
var connections = map[string]func(*connection) error{
	"pods/log":         (*connection).podLog,
	"pods/exec":        func(c *connection) error { return c.podStream("exec", &corev1.PodExecOptions{}) },
	"pods/attach":      func(c *connection) error { return c.podStream("attach", &corev1.PodAttachOptions{}) },
	"pods/portforward": func(c *connection) error { return c.podStream("portForward", &corev1.PodPortForwardOptions{}) },
	"pods/proxy":       (*connection).podProxy,
	"services/proxy":   (*connection).serviceProxy,
	"nodes/proxy":      (*connection).nodeProxy,
}

// Serves says that a subresource, "resource/subresource", opens a connection.
func Serves(subresource string) bool { return connections[subresource] != nil }

// ErrMethod refuses a method that the subresource has not.
var ErrMethod = errors.New("the method is not allowed on the subresource")

// Serve answers a request for a subresource that Serves names. Its error is for
// the caller to answer with.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, info *request.Info, caller Caller) error {
	c := &connection{s: s, w: w, r: r, ctx: r.Context(), info: info, caller: caller}
	return connections[info.Resource+"/"+info.Subresource](c)
}

// admit decodes the options from the query and asks admission.
func (c *connection) admit(opts runtime.Object) error {
	if err := c.decodeQuery(opts); err != nil {
		return err
	}
	return c.caller.Admit(opts)
}

// pod is the pod of that name in the request's namespace.
func (c *connection) pod(name string) (*corev1.Pod, error) {
	obj, err := c.caller.Get(name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Pod), nil
}

// kubelet is where the pod's kubelet is reached.
func (c *connection) kubelet(node string) (*relay, error) {
	return c.nodeRelay(c.s.cfg.Kubelet, node)
}

func (c *connection) nodeRelay(reach func(context.Context, string) (*url.URL, http.RoundTripper, error), node string) (*relay, error) {
	if reach == nil {
		return nil, apierrors.NewServiceUnavailable("no connection to kubelets is configured")
	}
	base, transport, err := reach(c.ctx, node)
	if err != nil {
		if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			return nil, err
		}
		return nil, apierrors.NewInternalError(err)
	}
	return &relay{target: *base, transport: transport}, nil
}
