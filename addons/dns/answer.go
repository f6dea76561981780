package dns

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"

	"knarr/addons/dns/corefile"
)

// maxChain is how often one name may lead to another.
const maxChain = 8

// resolve answers a question: from memory, or as its server block says.
func (s *Server) resolve(p *plan, key question, client netip.Addr, depth int) *stored {
	now := time.Now()
	part := p.memory.part(key.name)
	if a := part.recall(key); a != nil && a.valid(now) {
		a.hit(now)
		return a
	}
	name := key.text()
	srv := p.server(name)
	if srv == nil || key.class != dns.ClassINET {
		return s.failure(nil, key, dns.RcodeRefused)
	}
	if key.qtype == dns.TypeHINFO && s.loops.seen(name) {
		return s.failure(srv, key, dns.RcodeRefused)
	}
	asked, reverts := key, []revert(nil)
	if len(srv.Rewrites) > 0 {
		asked, reverts = rewrite(srv.Rewrites, key, name)
	}
	a := s.complete(p, srv, asked, client, depth)
	if len(reverts) > 0 {
		a = s.revert(a, srv, key, reverts)
	}
	if a.absent() && a.source == fromKubernetes && mayComplete(srv, asked) {
		return a
	}
	if a.changes != nil || a.source == fromForward && now.Before(a.until) {
		part.remember(key, a)
	}
	return a
}

// ask goes through the directives of a server block in CoreDNS' order.
func (s *Server) ask(p *plan, srv *server, key question, client netip.Addr, depth int) *stored {
	name := key.text()
	if h := srv.Hosts; h != nil {
		if m, ok := fromHostsFile(h, key, name); ok {
			a := s.pack(srv, key, m, fromHosts)
			a.changes = &p.static
			return a
		}
	}
	if srv.Kubernetes != nil {
		if a, ours := s.fromRecords(p, srv, key, name, client, depth); ours {
			return a
		}
	}
	for _, f := range srv.forwards {
		if !answersFor(&f.cfg, name) {
			continue
		}
		a, err := f.ask(key, client)
		if err == nil {
			return a
		}
		if srv.Errors {
			s.errors.log(err, name, key.qtype)
		}
		return s.failure(srv, key, dns.RcodeServerFailure)
	}
	return s.failure(srv, key, dns.RcodeServerFailure)
}

// fromRecords is what the cluster's records say, and what an ExternalName leads to.
// Few are looked up at a time: a Service of many endpoints makes large answers, for
// which many clients, or one, may ask at once.
func (s *Server) fromRecords(p *plan, srv *server, key question, name string, client netip.Addr, depth int) (a *stored, ours bool) {
	s.lookups <- struct{}{}
	release := sync.OnceFunc(func() { <-s.lookups })
	defer release()
	k := srv.Kubernetes
	ours, res := s.records.lookup(k, name, key.qtype)
	if !ours || res.absent && k.Fall.Through(name) {
		return nil, false
	}
	if res.unknown {
		return s.failure(srv, key, dns.RcodeServerFailure), true
	}
	m := reply(key)
	m.Authoritative = true
	m.Answer, m.Extra = res.answer, res.extra
	if res.absent {
		m.Rcode = dns.RcodeNameError
	}
	src := fromKubernetes
	if res.outside != "" {
		release() // what it leads to may be elsewhere, and take its time
		src = fromMany
		m.Answer = append(m.Answer, s.follow(p, res.outside, key, client, depth+1)...)
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{zone{Kubernetes: k, domain: k.Domain()}.soa()}
	}
	a = s.pack(srv, key, m, src)
	if src == fromKubernetes && a.source == src {
		a.changes, a.change = res.changes, res.change
	}
	return a, true
}

// follow asks for what a CNAME leads to.
func (s *Server) follow(p *plan, name string, key question, client netip.Addr, depth int) []dns.RR {
	if depth > maxChain {
		return nil
	}
	next, ok := named(key, name)
	if !ok {
		return nil
	}
	m, err := s.resolve(p, next, client, depth).unpacked(time.Now())
	if err != nil {
		return nil
	}
	return m.Answer
}

// named is the question for another name.
func named(key question, name string) (question, bool) {
	var wire [256]byte
	n, err := dns.PackDomainName(dns.CanonicalName(name), wire[:], 0, nil, false)
	if err != nil {
		return key, false
	}
	key.name = string(wire[:n])
	return key, true
}

// reply is an answer without records.
func reply(key question) *dns.Msg {
	m := &dns.Msg{Question: []dns.Question{{Name: key.text(), Qtype: key.qtype, Qclass: key.class}}}
	m.Response, m.RecursionAvailable = true, true
	return m
}

func (s *Server) failure(srv *server, key question, rcode int) *stored {
	m := reply(key)
	m.Rcode = rcode
	return s.pack(srv, key, m, fromNowhere)
}

// pack makes an answer of what a server block says; one that cannot be packed is a failure.
func (s *Server) pack(srv *server, key question, m *dns.Msg, src source) *stored {
	a, err := newStored(m)
	if err != nil {
		slog.Debug("pack a DNS answer", "name", key.text(), "err", err)
		m = reply(key)
		m.Rcode = dns.RcodeServerFailure
		src = fromNowhere
		if a, err = newStored(m); err != nil {
			a = &stored{}
		}
	}
	a.server, a.source = srv, src
	return a
}

// fromHostsFile answers with names given by themselves; not ok: something else does.
func fromHostsFile(h *corefile.Hosts, key question, name string) (*dns.Msg, bool) {
	if !corefile.InZones(name, h.Zones) {
		return nil, false
	}
	m := reply(key)
	m.Authoritative = true
	header := dns.RR_Header{Name: name, Class: dns.ClassINET, Ttl: h.TTL}
	addrs, found := h.Addresses[name]
	for _, a := range addrs {
		m.Answer = append(m.Answer, addressRecord(header, a, key.qtype)...)
	}
	if addr, ok := reverse(name); ok && key.qtype == dns.TypePTR {
		header.Rrtype = dns.TypePTR
		for _, n := range h.Names[addr] {
			m.Answer = append(m.Answer, &dns.PTR{Hdr: header, Ptr: n})
		}
	}
	if len(m.Answer) > 0 || found { // a name that is there has no records of other types
		return m, true
	}
	if h.Fall.Through(name) {
		return nil, false
	}
	m.Rcode = dns.RcodeNameError
	return m, true
}
