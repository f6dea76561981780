// Package metrics serves metrics.k8s.io, as metrics-server does: what nodes and
// pods use. It reads Nodes, Pods and the APIServices of metrics.k8s.io, and
// every kubelet's /metrics/resource; it writes these APIServices, and the roles of
// its user and its readers, where there are none.
//
// Every server measures for its own API server: kubelets answer all servers that
// ask within a second from one measurement, so that costs little, needs no
// leader, and answers go on when a server is lost.
package metrics

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/memnet"
	"knarr/internal/run"
)

// User is the identity towards the API server and the kubelets: the service
// account of metrics-server.
const (
	Namespace      = "kube-system"
	ServiceAccount = "metrics-server"
)

// Service is what the APIService names, "namespace/name". There is no such
// Service: the API server passes on what is for it within the process. It is not
// metrics-server's, so that a user's own can be distinguished from this.
const (
	serviceName = "knarr-metrics"
	Service     = Namespace + "/" + serviceName
)

// Config is what a Server needs.
type Config struct {
	// Kube reaches the API server as the service account.
	Kube *rest.Config
	// Registrar reaches it as a user who may write APIServices and roles.
	Registrar *rest.Config
	// Kubelet is how to reach a node's kubelet as the service account.
	Kubelet func(ctx context.Context, node string) (*url.URL, http.RoundTripper, error)
}

// A Server measures, and answers requests of the API server.
type Server struct {
	cfg      Config
	client   kubernetes.Interface
	store    *store
	listener atomic.Pointer[memnet.Listener]
	nodes    cache.SharedIndexInformer
	register *registrar
	wake     chan struct{} // what is to be measured may have changed
}

// New puts a server together; it starts nothing.
func New(c Config) (*Server, error) {
	client, err := kubernetes.NewForConfig(c.Kube)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	s := &Server{cfg: c, client: client, store: newStore(), wake: make(chan struct{}, 1)}
	s.listener.Store(memnet.Listen())
	s.register, err = newRegistrar(c.Registrar, s.kick)
	return s, err
}

// Dial connects to the server; a request waits until it runs.
func (s *Server) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return s.listener.Load().Dial(ctx, network, address)
}

func (s *Server) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run measures and answers until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	if err := s.register.roles(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	f := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithTransform(slimNode))
	s.nodes = f.Core().V1().Nodes().Informer()
	if _, err := s.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.kick() }, UpdateFunc: func(any, any) { s.kick() }, DeleteFunc: func(any) { s.kick() },
	}); err != nil {
		cancel()
		return fmt.Errorf("watch nodes: %w", err)
	}
	srv := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 1 << 20}
	listener := s.listener.Load()
	failed := make(chan error, 3)
	var wg run.Group
	defer wg.Wait()
	defer func() {
		cancel()
		_ = srv.Close()
		s.listener.Store(memnet.Listen()) // for the next run
		f.Shutdown()
	}()
	f.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), s.nodes.HasSynced) {
		return nil
	}
	for name, part := range map[string]func() error{
		"metrics: serve":    func() error { return srv.Serve(listener) },
		"metrics: register": func() error { return s.register.run(ctx) },
		"metrics: scrape":   func() error { s.scrapeAll(ctx); return nil },
	} {
		wg.Go(name, func() {
			if err := run.Catch(name, part); err != nil {
				failed <- err
			}
		})
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("metrics: %w", err)
	}
}

// slimNode keeps what is needed of a Node.
func slimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	slim := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels}}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			slim.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return slim, nil
}

func ready(n *corev1.Node) bool {
	return len(n.Status.Conditions) == 1 && n.Status.Conditions[0].Status == corev1.ConditionTrue
}
