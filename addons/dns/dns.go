// Package dns answers DNS for the cluster. It reads Services, EndpointSlices
// and Namespaces, answers from memory, and asks the node's own servers for
// everything outside the cluster's domain. For all servers together it writes
// the Service kube-dns and its EndpointSlices.
//
// The names are those of the Kubernetes DNS specification 1.1.0.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"

	"github.com/miekg/dns"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/informer"
	"knarr/internal/run"
)

// Config is what a DNS server needs.
type Config struct {
	// Kube reaches the API server.
	Kube *rest.Config
	// Domain of the cluster. Default cluster.local.
	Domain string
	// Listen are the addresses to answer on, UDP and TCP.
	Listen []netip.AddrPort
	// ResolvConf names the servers for other names. Default /etc/resolv.conf.
	ResolvConf string
	// TTL of answers, seconds. Default 5.
	TTL uint32
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
	factory informers.SharedInformerFactory
	records *records
	forward *forwarder
	began   chan struct{}
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
	f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(informer.TrimMetadata))
	s := &Server{cfg: c, client: client, factory: f, forward: newForwarder(c.ResolvConf, c.Listen), began: make(chan struct{})}
	s.records, err = newRecords(c.Domain, c.TTL, f)
	return s, err
}

// Serving is closed once names are answered.
func (s *Server) Serving() <-chan struct{} { return s.began }

// maxStreams is how many TCP connections there may be at a time.
const maxStreams = 1000

// Run answers until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	s.factory.StartWithContext(ctx)
	defer s.factory.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	if !cache.WaitForCacheSync(ctx.Done(), s.records.synced...) {
		return nil
	}
	var servers []*dns.Server
	var wg run.Group
	defer wg.Wait()
	streams := newFairLimiter(maxStreams)
	failed := make(chan error, 2*len(s.cfg.Listen))
	for _, at := range s.cfg.Listen {
		packets, err := s.cfg.Sockets.ListenPacket("udp", at.String())
		if err != nil {
			return fmt.Errorf("dns: listen: %w", err)
		}
		stream, err := s.cfg.Sockets.Listen("tcp", at.String())
		if err != nil {
			packets.Close()
			return fmt.Errorf("dns: listen: %w", err)
		}
		servers = append(servers,
			&dns.Server{PacketConn: packets, Handler: s, UDPSize: dns.DefaultMsgSize},
			&dns.Server{Listener: sharedListener{stream, streams}, Handler: s, MaxTCPQueries: -1})
	}
	for _, srv := range servers {
		wg.Go("DNS: serve", func() {
			if err := run.Catch("DNS: serve", srv.ActivateAndServe); err != nil {
				failed <- err
			}
		})
	}
	defer func() {
		for _, srv := range servers {
			_ = srv.Shutdown()
		}
	}()
	close(s.began)
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("dns: serve: %w", err)
	}
}

// ServeDNS answers one query.
func (s *Server) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	defer func() {
		if p := recover(); p != nil {
			slog.Error("panic in DNS answer", "panic", p, "stack", string(debug.Stack()))
			run.CountPanic("dns answer")
			m := new(dns.Msg)
			_ = w.WriteMsg(m.SetRcode(q, dns.RcodeServerFailure))
		}
	}()
	m := s.answer(w, q)
	size := dns.MinMsgSize
	if w.LocalAddr().Network() == "tcp" {
		size = dns.MaxMsgSize
	} else if o := q.IsEdns0(); o != nil {
		size = max(size, min(int(o.UDPSize()), 4096))
	}
	if o := q.IsEdns0(); o != nil && m.IsEdns0() == nil {
		m.SetEdns0(4096, o.Do())
	}
	m.Truncate(size)
	_ = w.WriteMsg(m)
}

func (s *Server) answer(w dns.ResponseWriter, q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	if q.Opcode != dns.OpcodeQuery || len(q.Question) != 1 {
		return m.SetRcode(q, dns.RcodeNotImplemented)
	}
	question := q.Question[0]
	name := dns.CanonicalName(question.Name)
	if ours, result := s.records.lookup(name, question.Qtype); ours {
		m.SetReply(q)
		m.Authoritative, m.RecursionAvailable = true, true
		if result.absent {
			m.Rcode = dns.RcodeNameError
		}
		for _, rr := range result.answer {
			if strings.EqualFold(rr.Header().Name, question.Name) {
				rr = dns.Copy(rr) // spelled as asked: some clients insist
				rr.Header().Name = question.Name
			}
			m.Answer = append(m.Answer, rr)
		}
		m.Extra = append(m.Extra, result.extra...)
		if result.outside != "" { // an ExternalName leads out of the cluster
			m.Answer = append(m.Answer, s.follow(w, result.outside, question.Qtype)...)
		}
		if len(m.Answer) == 0 {
			m.Ns = []dns.RR{s.records.soa()}
		}
		return m
	}
	m, err := s.forward.ask(q, clientOf(w.RemoteAddr()))
	if err != nil {
		m = new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	}
	m.Id = q.Id
	return m
}

// follow asks for what a CNAME leads to.
func (s *Server) follow(w dns.ResponseWriter, name string, qtype uint16) []dns.RR {
	if qtype == dns.TypeCNAME {
		return nil
	}
	if ours, result := s.records.lookup(name, qtype); ours {
		return result.answer
	}
	next := new(dns.Msg)
	next.SetQuestion(name, qtype)
	next.RecursionDesired = true
	m, err := s.forward.ask(next, clientOf(w.RemoteAddr()))
	if err != nil {
		return nil
	}
	return m.Answer
}
