package dns

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// forwarder asks the node's own servers and remembers their answers.
type forwarder struct {
	servers []string
	udp     *dns.Client
	tcp     *dns.Client
	limit   chan struct{} // questions under way
	shards  [16]shard
}

// A shard is a part of the memory, with a lock of its own.
type shard struct {
	mu      sync.Mutex
	answers map[question]remembered
}

type question struct {
	name         string
	qtype, class uint16
	do           bool
}

type remembered struct {
	msg   *dns.Msg
	until time.Time
}

const (
	perShard    = 512
	maxRemember = 30 * time.Second // CoreDNS' default for a cluster
	minRemember = 5 * time.Second
	underWay    = 1000
)

var errNoServers = errors.New("this node's resolver configuration names no server that is not this one")

// newForwarder reads the servers of a resolver configuration, without those
// that would lead back here.
func newForwarder(file string, self []netip.AddrPort) *forwarder {
	f := &forwarder{
		udp: &dns.Client{Net: "udp", Timeout: 2 * time.Second, UDPSize: 4096}, tcp: &dns.Client{Net: "tcp", Timeout: 3 * time.Second},
		limit: make(chan struct{}, underWay),
	}
	for i := range f.shards {
		f.shards[i].answers = map[question]remembered{}
	}
	cfg, err := dns.ClientConfigFromFile(file)
	if err != nil {
		return f
	}
	for _, s := range cfg.Servers {
		addr, err := netip.ParseAddr(s)
		at := net.JoinHostPort(s, cfg.Port)
		if err != nil || slices.ContainsFunc(self, func(p netip.AddrPort) bool { return p.Addr() == addr && p.String() == at }) {
			continue
		}
		f.servers = append(f.servers, at)
	}
	return f
}

// ask answers from memory or asks the servers in turn. The message is the
// caller's.
func (f *forwarder) ask(q *dns.Msg) (*dns.Msg, error) {
	key := question{dns.CanonicalName(q.Question[0].Name), q.Question[0].Qtype, q.Question[0].Qclass, q.IsEdns0() != nil && q.IsEdns0().Do()}
	s := &f.shards[hash(key.name)%uint32(len(f.shards))]
	now := time.Now()
	s.mu.Lock()
	hit, ok := s.answers[key]
	s.mu.Unlock()
	if ok && now.Before(hit.until) {
		m := hit.msg.Copy()
		m.Question = slices.Clone(q.Question)
		left := uint32(hit.until.Sub(now) / time.Second)
		for _, rr := range m.Answer {
			rr.Header().Ttl = min(rr.Header().Ttl, left+1)
		}
		return m, nil
	}
	if len(f.servers) == 0 {
		return nil, errNoServers
	}
	select {
	case f.limit <- struct{}{}:
		defer func() { <-f.limit }()
	default:
		return nil, errors.New("too many questions under way")
	}
	var last error
	for _, server := range f.servers {
		m, _, err := f.udp.Exchange(q, server)
		if err == nil && m.Truncated {
			m, _, err = f.tcp.Exchange(q, server)
		}
		if err != nil {
			last = err
			continue
		}
		if keep := lifetime(m); keep > 0 {
			s.mu.Lock()
			if len(s.answers) >= perShard {
				clear(s.answers)
			}
			s.answers[key] = remembered{m.Copy(), now.Add(keep)}
			s.mu.Unlock()
		}
		return m, nil
	}
	return nil, last
}

// lifetime is how long an answer may be remembered.
func lifetime(m *dns.Msg) time.Duration {
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return 0
	}
	keep := maxRemember
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		keep = min(keep, time.Duration(rr.Header().Ttl)*time.Second)
	}
	if len(m.Answer)+len(m.Ns) == 0 {
		keep = minRemember
	}
	return keep
}
