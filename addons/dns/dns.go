// Package dns answers DNS for the cluster. It reads Services, EndpointSlices,
// Namespaces and the ConfigMaps coredns and coredns-custom, answers from memory,
// and asks other servers, the node's own by default, for everything outside the
// cluster's domain. It writes Events of these ConfigMaps and, for all servers
// together, the Service kube-dns and its EndpointSlices.
//
// The names are those of the Kubernetes DNS specification 1.1.0.
package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"knarr/addons/dns/corefile"
	"knarr/internal/informer"
	"knarr/internal/run"
)

// Config is what a DNS server needs.
type Config struct {
	// Kube reaches the API server.
	Kube *rest.Config
	// Watches are shared with the node's other components. Default: none are.
	Watches *informer.Shared
	// Domain of the cluster. Default cluster.local.
	Domain string
	// Listen are the addresses to answer on, UDP and TCP.
	Listen []netip.AddrPort
	// ResolvConf names the servers for other names. Default /etc/resolv.conf.
	ResolvConf string
	// TTL of answers, seconds. Default 5.
	TTL uint32
	// Metrics are the addresses of /metrics, /health and /ready; none by default.
	Metrics []netip.AddrPort
	// Clients are the ranges of who is answered, also about metrics, where the
	// addresses to listen on are not the pods' alone. Empty: everybody.
	Clients []netip.Prefix
	// Sockets opens what to listen on. Default: package net.
	Sockets Sockets
}

// Sockets opens sockets as package net does.
type Sockets interface {
	ListenPacket(network, address string) (net.PacketConn, error)
	Listen(network, address string) (net.Listener, error)
}

type plain struct{}

func (plain) ListenPacket(network, address string) (net.PacketConn, error) {
	return net.ListenPacket(network, address)
}
func (plain) Listen(network, address string) (net.Listener, error) {
	return net.Listen(network, address)
}

// A Server answers DNS.
type Server struct {
	cfg     Config
	client  kubernetes.Interface
	watches *informer.Watches
	records *records
	metrics *metrics
	loops   loops
	errors  failures
	limiter *fairLimiter  // of questions under way elsewhere
	queries *fairLimiter  // that are not answered from memory
	lookups chan struct{} // holds those under way in the records
	began   chan struct{}

	plan   atomic.Pointer[plan]
	conf   configuration
	search atomic.Pointer[[]string] // of the node's resolver configuration
}

// New puts a server together; it starts nothing.
func New(c Config) (*Server, error) {
	if c.Domain == "" {
		c.Domain = "cluster.local"
	}
	c.Domain = dns.CanonicalName(c.Domain)
	if c.TTL == 0 {
		c.TTL = 5
	}
	if c.Sockets == nil {
		c.Sockets = plain{}
	}
	if c.ResolvConf == "" {
		c.ResolvConf = "/etc/resolv.conf"
	}
	if len(c.Listen) == 0 {
		return nil, errors.New("dns: no address to listen on")
	}
	client, err := kubernetes.NewForConfig(c.Kube)
	if err != nil {
		return nil, fmt.Errorf("dns: %w", err)
	}
	w := informer.NewWatches(c.Watches, client)
	s := &Server{
		cfg: c, client: client, watches: w, metrics: newMetrics(), began: make(chan struct{}),
		limiter: newFairLimiter(underWay), queries: newFairLimiter(maxQueries), lookups: make(chan struct{}, 2*runtime.GOMAXPROCS(0)),
	}
	s.search.Store(&[]string{})
	if s.records, err = newRecords(w); err != nil {
		return nil, err
	}
	s.records.changes.programmed = s.metrics.observeProgramming
	servers, problems, err := s.read(corefile.Files{})
	if err != nil || len(problems) > 0 {
		return nil, fmt.Errorf("dns: the configuration that is built in: %v: %w", problems, err)
	}
	s.use(servers)
	s.metrics.watchMemory(func() *memory { return s.plan.Load().memory })
	return s, nil
}

// answers reports whether a client is answered at all.
func (s *Server) answers(client netip.Addr) bool {
	if len(s.cfg.Clients) == 0 {
		return true
	}
	client = client.Unmap().WithZone("")
	return slices.ContainsFunc(s.cfg.Clients, func(p netip.Prefix) bool { return p.Contains(client) })
}

// Serving is closed once names are answered.
func (s *Server) Serving() <-chan struct{} { return s.began }

// maxStreams is how many TCP connections there may be at a time.
const maxStreams = 1000

// configurationTime is how long the first answer waits for the ConfigMaps: without
// the right to read them, names are answered all the same.
const configurationTime = 5 * time.Second

// Run answers until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg run.Group
	defer func() { s.plan.Load().close() }() // one that came while Run ended
	defer wg.Wait()
	defer s.watches.Stop()
	defer cancel() // before Stop, which waits for the informers
	s.serveHTTP(ctx, &wg)
	s.watches.Start(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), s.records.synced...) {
		return nil
	}
	s.configure(ctx, &wg)
	defer func() { s.plan.Load().close() }()
	streams := newFairLimiter(maxStreams)
	failed := make(chan error, (readers+2)*len(s.cfg.Listen))
	for _, at := range s.cfg.Listen {
		serve, stop, err := s.listen(at, streams)
		if err != nil {
			return err
		}
		defer stop()
		for _, f := range serve {
			wg.Go("DNS: serve", func() {
				if err := run.Catch("DNS: serve", f); err != nil {
					failed <- err
				}
			})
		}
	}
	close(s.began)
	s.detectLoops()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("dns: serve: %w", err)
	}
}
