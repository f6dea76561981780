package dns

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"knarr/addons/dns/corefile"
)

// forwarder asks servers and remembers their answers. A question that several
// clients have at a time is asked once.
type forwarder struct {
	id         uint8
	cfg        corefile.Forward
	cache      *corefile.Cache // nil: nothing is remembered
	memory     *memory
	limiter    *fairLimiter // of questions under way, those of all forwarders
	metrics    *metrics
	loops      *loops
	probeLoops bool
	server     *server // that it is a directive of
	upstreams  atomic.Pointer[[]*upstream]
	next       atomic.Uint32

	ctx context.Context
	wg  *work
}

const (
	underWay = 1000
	minKeep  = 5 * time.Second // of an answer that names no time

	udpTime = 2 * time.Second
	tcpTime = 3 * time.Second
	// allTime is with all servers, one after the other: resolvers of clients wait
	// for five seconds.
	allTime = 4500 * time.Millisecond
	// staleAfter is how long clients wait while there is an answer whose time is
	// over: RFC 8767's.
	staleAfter = 1800 * time.Millisecond
	// retryAfter is how long servers that have failed are not asked again for such.
	retryAfter = 5 * time.Second

	// udpSize is what a server is asked to send at most by UDP, and what a client
	// is sent: no more than goes unfragmented, for a fragment can be forged without
	// knowing the question's id.
	udpSize = 1232
)

var (
	errNoServers = errors.New("there is no server to ask: resolv.conf and forward name none, or only ones that lead back here")
	errTooMany   = errors.New("too many questions under way")
	errGivenUp   = errors.New("the question was given up")
)

func newForwarder(ctx context.Context, wg *work, s *Server, cfg corefile.Forward, c *corefile.Cache, m *memory) *forwarder {
	f := &forwarder{cfg: cfg, cache: c, memory: m, limiter: s.limiter, metrics: s.metrics, loops: &s.loops, ctx: ctx, wg: wg}
	if cfg.MaxConcurrent > 0 && cfg.MaxConcurrent < underWay {
		f.limiter = newFairLimiter(cfg.MaxConcurrent)
	}
	f.setUpstreams(nil)
	return f
}

// ask answers a client's question from memory or asks servers for it.
func (f *forwarder) ask(key question, client netip.Addr) (*stored, error) {
	key.forward = f.id
	part, now := f.memory.part(key.name), time.Now()
	have := part.recall(key)
	switch {
	case have == nil:
	case have.valid(now):
		have.hit(now)
		return have, nil
	case !now.Before(have.stale):
		have = nil
	case now.UnixNano() < have.retry.Load():
		f.metrics.stale.Inc()
		return have, nil
	}
	flight, first, err := f.start(part, key, client, have)
	if err == nil && !first {
		defer f.limiter.release(client)
	}
	if have == nil {
		if err != nil {
			return nil, err
		}
		<-flight.done
		return flight.answer, flight.err
	}
	if err == nil && !f.cache.StaleImmediate {
		enough := time.NewTimer(staleAfter)
		defer enough.Stop()
		select {
		case <-flight.done:
			if flight.err == nil {
				return flight.answer, nil
			}
		case <-enough.C:
		}
	}
	f.metrics.stale.Inc()
	return have, nil
}

// start asks servers for what nobody asks them for yet. The place that it takes is
// the flight's if it is the first, else the caller's to release.
func (f *forwarder) start(part *part, key question, client netip.Addr, have *stored) (fl *flight, first bool, _ error) {
	if !f.limiter.take(client) {
		f.metrics.rejects.Inc()
		return nil, false, errTooMany
	}
	flight, first := part.join(key)
	if !first {
		return flight, false, nil
	}
	started := f.wg.Go("DNS: ask", func() {
		defer part.land(key, flight)
		defer f.limiter.release(client) // runs before land: who has the answer finds the place free
		flight.err = errGivenUp
		answer, err := f.askServers(key)
		if have != nil && (err != nil || answer.wire[3]&0xf == dns.RcodeServerFailure) {
			have.retry.Store(time.Now().Add(retryAfter).UnixNano())
			flight.err = cmp.Or(err, errGivenUp)
			return
		}
		if flight.answer, flight.err = answer, err; err == nil {
			f.remember(part, key, answer)
		} else if f.cache != nil && f.cache.Servfail > 0 && !errors.Is(err, errNoServers) {
			m := reply(key)
			m.Rcode = dns.RcodeServerFailure
			if a, err := newStored(m); err == nil {
				a.began, a.source, a.server = time.Now(), fromForward, f.server
				a.until = a.began.Add(f.cache.Servfail)
				part.remember(key, a)
			}
		}
	})
	if !started { // the configuration is another one now
		flight.err = errGivenUp
		f.limiter.release(client)
		part.land(key, flight)
	}
	return flight, true, nil
}

// remember keeps an answer, and asks for it again before its time is over if it is
// popular.
func (f *forwarder) remember(part *part, key question, a *stored) {
	if !time.Now().Before(a.until) || f.cache.Zones != nil && !corefile.InZones(key.text(), f.cache.Zones) {
		a.until = time.Time{}
		return
	}
	part.remember(key, a)
}

// due reports whether a popular answer has so little of its time left that it is
// asked for again, for the benefit of those to come.
func (a *stored) due(now time.Time) bool {
	c := a.server.Cache
	if c == nil || c.Prefetch == 0 || int(a.hits.Load()) < c.Prefetch || a.prefetched.Load() {
		return false
	}
	return a.until.Sub(now) <= max(a.until.Sub(a.began)*time.Duration(c.PrefetchPercentage)/100, time.Second)
}

// prefetch asks for an answer again, once.
func (s *Server) prefetch(a *stored, key question) {
	if len(a.server.Rewrites) > 0 {
		return // a server was asked for another name than the client has
	}
	name := key.text()
	for _, f := range a.server.forwards {
		if answersFor(&f.cfg, name) {
			if a.prefetched.CompareAndSwap(false, true) {
				f.prefetch(key, a)
			}
			return
		}
	}
}

func (f *forwarder) prefetch(key question, a *stored) {
	key.forward = f.id
	_, first, err := f.start(f.memory.part(key.name), key, netip.Addr{}, a)
	switch {
	case err == nil && first:
		f.metrics.prefetched.Inc()
	case err == nil:
		f.limiter.release(netip.Addr{})
	}
}

// askServers gives the first answer that is one, as it is remembered.
func (f *forwarder) askServers(key question) (*stored, error) {
	began := time.Now()
	end, last := began.Add(allTime), error(errNoServers)
	var refused *dns.Msg
	order := f.order()
	for i, u := range order {
		left := time.Until(end)
		if left <= 0 {
			break
		}
		m, err := f.exchange(key, u, end, max(left/time.Duration(len(order)-i), min(left, udpTime/2)))
		if f.ctx.Err() != nil {
			return nil, errGivenUp
		}
		u.note(f, m, err, time.Since(began))
		if err != nil {
			last = err
			continue
		}
		if m.Rcode == dns.RcodeServerFailure || slices.Contains(f.cfg.Failover, m.Rcode) {
			refused = m // another may know better
			continue
		}
		return f.keep(key, m)
	}
	if refused != nil {
		return f.keep(key, refused)
	}
	return nil, last
}

// keep makes an answer of a server's one that is remembered and sent.
func (f *forwarder) keep(key question, m *dns.Msg) (*stored, error) {
	m.Question[0].Name = key.text()
	m.Extra = slices.DeleteFunc(m.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
	m.Answer = about(m.Question[0].Name, m.Answer)
	m.Authoritative = false
	m.RecursionAvailable = true
	a, err := newStored(m)
	if err != nil {
		return nil, err
	}
	a.source, a.server, a.began = fromForward, f.server, time.Now()
	if f.cache != nil {
		if keep := lifetime(m, f.cache); keep > 0 {
			a.until, a.keepTTL = a.began.Add(keep), f.cache.KeepTTL
			a.stale = a.until.Add(f.cache.Stale)
		}
		if m.Rcode == dns.RcodeServerFailure {
			a.stale = time.Time{}
		}
	}
	return a, nil
}

// about keeps the records of a name and of those that it leads to: what else a
// server puts into an answer nobody has asked it for. Pure.
func about(name string, answer []dns.RR) []dns.RR {
	next := map[string]string{}
	for _, rr := range answer {
		if c, ok := rr.(*dns.CNAME); ok {
			next[dns.CanonicalName(c.Hdr.Name)] = dns.CanonicalName(c.Target)
		}
	}
	of := map[string]bool{}
	for name = dns.CanonicalName(name); name != "" && !of[name] && len(of) <= maxChain; name = next[name] {
		of[name] = true
	}
	return slices.DeleteFunc(answer, func(rr dns.RR) bool {
		owner := dns.CanonicalName(rr.Header().Name)
		if rr.Header().Rrtype != dns.TypeDNAME {
			return !of[owner]
		}
		for n := range of {
			if dns.IsSubDomain(owner, n) {
				return false
			}
		}
		return true
	})
}

// lifetime is how long an answer may be remembered. Pure.
func lifetime(m *dns.Msg, c *corefile.Cache) time.Duration {
	if m.Truncated {
		return 0
	}
	most, least := c.Success, c.MinSuccess
	switch {
	case m.Rcode == dns.RcodeServerFailure:
		return c.Servfail
	case m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError:
		return 0
	case m.Rcode == dns.RcodeNameError || len(m.Answer) == 0:
		most, least = c.Denial, c.MinDenial
	}
	keep := most
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		keep = min(keep, time.Duration(rr.Header().Ttl)*time.Second)
		if soa, ok := rr.(*dns.SOA); ok && len(m.Answer) == 0 {
			keep = min(keep, time.Duration(soa.Minttl)*time.Second)
		}
	}
	if len(m.Answer)+len(m.Ns) == 0 {
		keep = min(most, minKeep)
	}
	return max(keep, least)
}
