package dns

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// memory holds answers from outside the cluster. It is bounded by bytes, since
// pods choose what is asked and so what is answered; what makes room is a few
// answers that would end soon, never many at once.
type memory struct {
	seed  maphash.Seed // so that nobody can choose names that share a part
	parts [16]part
}

// A part of the memory has a lock of its own.
type part struct {
	mu      sync.Mutex
	answers map[question]remembered
	bytes   int
	flights map[question]*flight
}

// A question is what decides on its answer.
type question struct {
	name         string
	qtype, class uint16
	edns, do, cd bool
}

type remembered struct {
	wire  []byte
	until time.Time
}

// A flight is a question that servers are being asked.
type flight struct {
	done chan struct{}
	wire []byte
	err  error
}

const (
	partBytes = 256 << 10
	// maxAnswer is the largest answer worth the room.
	maxAnswer = 4 << 10
	// overhead is about what an answer takes beside its own bytes and its name.
	overhead = 160
	// sample is how many answers are looked at to find one to give up.
	sample = 8
)

func newMemory() *memory {
	m := &memory{seed: maphash.MakeSeed()}
	for i := range m.parts {
		m.parts[i].answers, m.parts[i].flights = map[question]remembered{}, map[question]*flight{}
	}
	return m
}

func (m *memory) part(key question) *part {
	return &m.parts[maphash.String(m.seed, key.name)%uint64(len(m.parts))]
}

func questionOf(q *dns.Msg) question {
	key := question{name: dns.CanonicalName(q.Question[0].Name), qtype: q.Question[0].Qtype, class: q.Question[0].Qclass, cd: q.CheckingDisabled}
	if o := q.IsEdns0(); o != nil {
		key.edns, key.do = true, o.Do()
	}
	return key
}

// message is the question as servers are asked it: nothing of the client's own
// message goes with it.
func (k question) message() *dns.Msg {
	m := &dns.Msg{Question: []dns.Question{{Name: k.name, Qtype: k.qtype, Qclass: k.class}}}
	m.Id, m.RecursionDesired, m.CheckingDisabled = dns.Id(), true, k.cd
	if k.edns {
		m.SetEdns0(udpSize, k.do)
	}
	return m
}

// recall gives a remembered answer with what is left of its time.
func (p *part) recall(key question, now time.Time) *dns.Msg {
	p.mu.Lock()
	hit, ok := p.answers[key]
	p.mu.Unlock()
	if !ok || !now.Before(hit.until) {
		return nil
	}
	m := new(dns.Msg)
	if m.Unpack(hit.wire) != nil {
		return nil
	}
	left := uint32(hit.until.Sub(now)/time.Second) + 1
	for _, section := range [][]dns.RR{m.Answer, m.Ns} {
		for _, rr := range section {
			rr.Header().Ttl = min(rr.Header().Ttl, left)
		}
	}
	return m
}

// remember keeps an answer for as long as it may be.
func (p *part) remember(key question, wire []byte, now time.Time) {
	m := new(dns.Msg)
	if len(wire) > maxAnswer || m.Unpack(wire) != nil {
		return
	}
	keep := lifetime(m)
	if keep <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(key)
	p.answers[key] = remembered{wire, now.Add(keep)}
	p.bytes += cost(key, wire)
	for p.bytes > partBytes {
		p.forget(p.soonest())
	}
}

func cost(key question, wire []byte) int { return len(wire) + len(key.name) + overhead }

func (p *part) forget(key question) {
	if old, ok := p.answers[key]; ok {
		p.bytes -= cost(key, old.wire)
		delete(p.answers, key)
	}
}

// soonest is, of a few answers, the one that would end first.
func (p *part) soonest() (key question) {
	seen, until := 0, time.Time{}
	for k, r := range p.answers {
		if seen == 0 || r.until.Before(until) {
			key, until = k, r.until
		}
		if seen++; seen == sample {
			break
		}
	}
	return key
}

// join gives the flight of a question, and whether it is the caller's to fly.
func (p *part) join(key question) (f *flight, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f = p.flights[key]; f != nil {
		return f, false
	}
	f = &flight{done: make(chan struct{})}
	p.flights[key] = f
	return f, true
}

// land ends a flight for all who wait for it.
func (p *part) land(key question, f *flight) {
	p.mu.Lock()
	delete(p.flights, key)
	p.mu.Unlock()
	close(f.done)
}
