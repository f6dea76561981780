package dns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// forwarder asks the node's own servers and remembers their answers. A question
// that several clients have at a time is asked once.
type forwarder struct {
	servers []string
	limiter *fairLimiter // of questions under way
	memory  *memory
}

const (
	maxRemember = 30 * time.Second // CoreDNS' default for a cluster
	minRemember = 5 * time.Second
	underWay    = 1000

	udpTime = 2 * time.Second
	tcpTime = 3 * time.Second
	allTime = 8 * time.Second // with all servers, one after the other

	// udpSize is what a server is told to send at most by UDP: no more than
	// goes unfragmented, for a fragment can be forged without knowing the
	// question's id.
	udpSize = 1232
)

var (
	errNoServers = errors.New("this node's resolver configuration names no server that is not this one")
	errTooMany   = errors.New("too many questions under way")
)

// newForwarder reads the servers of a resolver configuration, without those
// that would lead back here.
func newForwarder(file string, self []netip.AddrPort) *forwarder {
	f := &forwarder{limiter: newFairLimiter(underWay), memory: newMemory()}
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

// ask answers a client's question from memory or asks the servers in turn. The
// message is the caller's.
func (f *forwarder) ask(q *dns.Msg, client netip.Addr) (*dns.Msg, error) {
	key := questionOf(q)
	part, now := f.memory.part(key), time.Now()
	if m := part.recall(key, now); m != nil {
		m.Question = slices.Clone(q.Question)
		return m, nil
	}
	if len(f.servers) == 0 {
		return nil, errNoServers
	}
	if !f.limiter.take(client) {
		return nil, errTooMany
	}
	defer f.limiter.release(client)
	flight, first := part.join(key)
	if first {
		func() {
			defer part.land(key, flight)
			flight.err = errors.New("the question was given up")
			flight.wire, flight.err = f.askServers(key, now)
		}()
		if flight.err == nil {
			part.remember(key, flight.wire, now)
		}
	} else {
		<-flight.done
	}
	if flight.err != nil {
		return nil, flight.err
	}
	m := new(dns.Msg)
	if err := m.Unpack(flight.wire); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	m.Question = slices.Clone(q.Question)
	return m, nil
}

// askServers gives the first answer, packed and without what only concerns this
// hop.
func (f *forwarder) askServers(key question, now time.Time) ([]byte, error) {
	last := errNoServers
	for _, server := range f.servers {
		m, err := exchange(key, "udp", server, now.Add(allTime), udpTime)
		if err == nil && m.Truncated || errors.Is(err, errForged) {
			m, err = exchange(key, "tcp", server, now.Add(allTime), tcpTime)
		}
		if err != nil {
			last = err
			continue
		}
		m.Extra = slices.DeleteFunc(m.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
		m.Compress = true
		wire, err := m.Pack()
		if err != nil {
			last = fmt.Errorf("pack the answer of %s: %w", server, err)
			continue
		}
		return wire, nil
	}
	return nil, last
}

// lifetime is how long an answer may be remembered.
func lifetime(m *dns.Msg) time.Duration {
	if m.Truncated || m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return 0
	}
	keep := maxRemember
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		keep = min(keep, time.Duration(rr.Header().Ttl)*time.Second)
		if soa, ok := rr.(*dns.SOA); ok && len(m.Answer) == 0 {
			keep = min(keep, time.Duration(soa.Minttl)*time.Second)
		}
	}
	if len(m.Answer)+len(m.Ns) == 0 {
		keep = minRemember
	}
	return keep
}
