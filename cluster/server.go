// Package cluster decides which components this process runs, wires them, and
// starts and stops them. It reads flags and the config file, and writes the
// cluster's certificates, kubeconfig and lock below its data directory.
package cluster

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"knarr/addons/gateway"
	"knarr/addons/loadbalancer/announcer"
	"knarr/addons/localstorage"
	"knarr/addons/metrics"
	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/authn"
	"knarr/controlplane/apiserver/serviceallocation"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/etcd"
	"knarr/internal/buildinfo"
	"knarr/internal/footprint"
	"knarr/internal/memnet"
	"knarr/internal/run"
	"knarr/internal/version"
)

// A Server is one cluster's server in this process.
type Server struct {
	opts   Options
	layout layout
	began  time.Time

	claim      *dataDirLock
	ca         *authority
	frontProxy *authority   // signs who may name users in headers
	member     *etcd.Member // nil when the cluster is kept elsewhere
	peerState  *peerState   // nil for a server that was always alone
	partnersMu sync.Mutex
	voters     int // servers at the last count
	api        *apiserver.Server
	metrics    *metrics.Server
	tokenKey   crypto.Signer
	renewal    time.Time // of the certificates
	joins      *joins
	local      *memnet.Loopback
	listener   net.Listener
	kubelet    net.Listener
	sockets    *sockets
	node       *node // nil with --disable-agent
}

// NewServer checks what can be checked before anything is made. Options must
// have been validated.
func NewServer(o Options) *Server {
	l := layout{o.DataDir}
	return &Server{opts: o, layout: l, began: time.Now(), local: memnet.NewLoopback(), sockets: newSockets(l)}
}

// Run starts everything and blocks until ctx ends, then stops in reverse
// order: clients, API server, etcd. Containers keep running. An error is a
// user's mistake or a broken part that the cluster cannot do without.
func (s *Server) Run(ctx context.Context) error {
	joined, err := s.joinServers(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	if err := s.preflight(ctx); err != nil {
		return err
	}
	defer s.release()
	if err := s.adopt(joined); err != nil {
		return err
	}
	l := newLifetimes(ctx)
	defer l.cancel()
	store, certs, err := s.openStoreAndCertificates(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to end while it waited for the others
		}
		return err
	}
	s.member = store.member
	if s.joins, err = s.newJoins(s.member); err != nil {
		store.close()
		return err
	}
	s.tokenKey, s.renewal = certs.tokens, certs.renew
	if err = s.newMetrics(certs.metrics); err != nil {
		store.close()
		return err
	}
	if s.api, err = s.newAPIServer(store.store, certs); err != nil {
		store.close()
		return err
	}
	l.etcdGroup.Go("etcd", l.must("etcd", func() error { return store.serve(l.etcd) }))
	s.runAPI(l, certs)
	if err := s.runClients(l); err != nil {
		l.stopClients(err)
	}
	<-l.clients.Done()
	s.sockets.letGo() // an orderly end closes the ports at once
	return l.stop()
}

// openStoreAndCertificates does both at once, since each takes much of a start.
func (s *Server) openStoreAndCertificates(ctx context.Context) (*datastore, *certificates, error) {
	type result struct {
		*datastore
		err error
	}
	opening := make(chan result, 1)
	run.Go("open the datastore", func() {
		var o result
		defer func() { opening <- o }()
		o.err = run.Catch("open the datastore", func() (err error) {
			o.datastore, err = s.openDatastore(ctx)
			return err
		})
	})
	certs, err := s.certificates()
	opened := <-opening
	if err = errors.Join(err, opened.err); err != nil {
		if opened.datastore != nil {
			opened.close()
		}
		return nil, nil, err
	}
	return opened.datastore, certs, nil
}

// runAPI runs the API server and lets clients in once it has started.
func (s *Server) runAPI(l *lifetimes, certs *certificates) {
	l.apiGroup.Go("API server", l.must("API server", func() error { return s.api.Run(l.serving) }))
	l.apiGroup.Go("API server: serve", func() {
		defer l.served()
		select { // no client is let in before all objects of a new cluster exist
		case <-s.api.Started():
		case <-l.api.Done():
			return
		}
		slog.Info("API server ready", "after", time.Since(s.began).Round(time.Millisecond), "address", s.listener.Addr())
		var listeners run.Group
		listeners.Go("API server: serve this process", l.must("API server: serve this process", func() error { return s.api.ServeLoopback(l.api, s.local) }))
		l.must("API server: serve", func() error { return s.api.Serve(l.api, s.listener, s.tlsConfig(certs)) })()
		listeners.Wait()
	})
}

// runClients runs the components that are clients of the API server.
func (s *Server) runClients(l *lifetimes) error {
	if !s.opts.DisableAgent {
		s.node = s.newNode()
		if err := s.node.share(l.clients); err != nil {
			return err
		}
		l.clientGroup.Go("watches", func() { <-l.clients.Done(); s.node.watches.Wait() })
	}
	for _, c := range s.components() {
		l.clientGroup.Go(c.name, func() { supervise(l.clients, c) })
	}
	l.clientGroup.Go("settle", func() { settle(l.clients) })
	l.clientGroup.Go("hold sockets", func() { s.sockets.hold(l.clients, s.listener, s.kubelet) })
	return nil
}

// settleTime is when a start is over.
const settleTime = 15 * time.Second

// settle gives back, once, the memory that only the start needed.
func settle(ctx context.Context) {
	select {
	case <-time.After(settleTime):
	case <-ctx.Done():
		return
	}
	if _, err := footprint.Trim(); err != nil {
		slog.DebugContext(ctx, "give memory back", "err", err)
	}
}

func (s *Server) newAPIServer(store storage.Store, certs *certificates) (*apiserver.Server, error) {
	o := &s.opts
	cfg := apiserver.Config{
		Store: store, ClientCA: s.ca.pool,
		ServiceAccountKey: certs.tokens,
		Issuers:           []string{"https://kubernetes.default.svc." + o.ClusterDomain},
		ServiceCIDRs:      o.serviceCIDRs,
		NodePorts:         serviceallocation.PortRange{First: o.nodePorts[0], Last: o.nodePorts[1]},
		Advertise:         netip.AddrPortFrom(o.advertise, uint16(o.HTTPSListenPort)),
		KubeletClient:     certs.kubeletClient, KubeletCA: s.ca.pool, KubeletNames: true,
		ClientCAs: s.ca.pem, FrontProxyCAs: s.frontProxy.pem, Identity: certs.frontProxy,
		FrontProxy: &authn.FrontProxy{CA: s.frontProxy.pool, Names: []string{frontProxyName}},
		Open:       s.joins.paths(),
		Inside:     s.inside(),
		Aggregated: s.aggregated(),
		Version:    buildinfo.Of(version.Kubernetes + "+knarr"),
	}
	if err := o.api.Apply(&cfg); err != nil {
		return nil, fmt.Errorf("--kube-apiserver-arg: %w", err)
	}
	return apiserver.New(cfg)
}

// aggregated are the API servers in this process beside the API server itself.
func (s *Server) aggregated() map[string]func(context.Context, string, string) (net.Conn, error) {
	if s.opts.disabled("metrics-server") {
		return nil
	}
	return map[string]func(context.Context, string, string) (net.Conn, error){metrics.Service: s.metrics.Dial}
}

// hosts are what the API server goes by.
func (o *Options) hosts() []string {
	all := []string{
		"localhost", "127.0.0.1", "::1", o.NodeName, o.advertise.String(),
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + o.ClusterDomain,
	}
	for _, ip := range o.nodeIPs {
		all = append(all, ip.String())
	}
	for _, p := range o.serviceCIDRs {
		all = append(all, p.Addr().Next().String())
	}
	return append(all, o.TLSSAN...)
}

// facts are what the nodes of this cluster go by.
func (s *Server) facts() facts {
	o := &s.opts
	f := facts{
		ClusterCIDRs: o.clusterCIDRs, ServiceCIDRs: o.serviceCIDRs, ClusterDNS: o.clusterDNS, ClusterDomain: o.ClusterDomain,
		Backend: o.FlannelBackend, Network: networkID(s.ca.pem), CloudProvider: o.CloudProvider,
		SharedImages: o.EmbeddedRegistry || o.TrustedRegistry, TrustedTags: o.TrustedRegistry,
	}
	for _, part := range []string{"coredns", "kube-proxy", "local-storage", "network", networkPolicy, ingressPart, serviceLB} {
		if o.disabled(part) {
			f.Disabled = append(f.Disabled, part)
		}
	}
	return f
}

// newNode is the node of this server's own process.
func (s *Server) newNode() *node {
	return &node{
		opts: &s.opts.NodeOptions, layout: s.layout, facts: s.facts(), ca: s.ca.pool, clientKey: s.layout.tls(nodeClientName + ".key"), sockets: s.sockets, kubelet: s.kubelet,
		began: s.began, podNetwork: make(chan struct{}),
		as: identities{
			kubelet:   s.as("kubelet", "system:node:"+s.opts.NodeName, "system:nodes"),
			proxy:     s.as("kube-proxy", "system:kube-proxy"),
			dns:       s.as("knarr-dns", serviceaccount.MakeUsername("kube-system", "kube-dns"), serviceaccount.MakeGroupNames("kube-system")...),
			storage:   s.as("local-path-provisioner", localstorage.User(s.opts.NodeName), localstorage.Group),
			gateway:   s.as("knarr-gateway", gateway.User(s.opts.NodeName), gateway.Group),
			announcer: s.as("knarr-address-announcer", announcer.User(s.opts.NodeName), announcer.Group),
		},
	}
}

func (s *Server) tlsConfig(c *certificates) *tls.Config {
	clients := s.ca.pool.Clone()
	clients.AddCert(s.frontProxy.cert)
	return &tls.Config{
		GetCertificate: c.serving.Serving,
		MinVersion:     tls.VersionTLS12,
		ClientAuth:     tls.RequestClientCert, // verified by the authenticator
		ClientCAs:      clients,
		NextProtos:     []string{"h2", "http/1.1"},
	}
}

// as reaches this process's API server without a connection as a user, for one of
// upstream's programs.
func (s *Server) as(program, name string, groups ...string) *rest.Config {
	who := &user.DefaultInfo{Name: name, Groups: groups}
	return &rest.Config{
		Host: "http://apiserver", QPS: -1, UserAgent: version.UserAgent(program, name),
		Transport: s.local.As(who),
		ContentConfig: rest.ContentConfig{
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
			ContentType:        "application/vnd.kubernetes.protobuf",
		},
	}
}

// asController is as for a controller's service account.
func (s *Server) asController(name string) *rest.Config {
	return s.asAccount("kube-controller-manager", name)
}

// asAccount is as for a service account of kube-system.
func (s *Server) asAccount(program, name string) *rest.Config {
	const ns = "kube-system"
	return s.as(program, serviceaccount.MakeUsername(ns, name), serviceaccount.MakeGroupNames(ns)...)
}

// supervise runs a component for as long as ctx lasts: one that fails or
// panics is started again, ever more slowly, and the others go on.
func supervise(ctx context.Context, c component) {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		began := time.Now()
		err := run.Catch(c.name, func() error { return c.run(ctx) })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > 5*time.Minute {
			wait = time.Second
		}
		slog.Error("component ended, starting it again", "component", c.name, "in", wait, "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}
