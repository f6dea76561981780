package dns

import (
	"hash/maphash"
	"sync"
	"time"
)

// memory holds answers as they are sent. It is bounded by bytes, since pods choose
// what is asked and so what is answered; what makes room is a few answers that
// nobody has asked for again or that would end soon, never many at once. So what a
// flood of names leaves is what the flood's next names take away.
type memory struct {
	seed  maphash.Seed // so that nobody can choose names that share a part
	parts [16]part
}

// A part of the memory has a lock of its own.
type part struct {
	mu      sync.Mutex
	most    int // bytes
	answers map[question]*stored
	bytes   int
	evicted [2]uint64 // answers that made room: success, denial
	flights map[question]*flight
}

// A flight is a question that servers are being asked.
type flight struct {
	done   chan struct{}
	answer *stored
	err    error
}

const (
	// memoryBytes are those of all answers unless the configuration gives a
	// capacity; maxMemoryBytes are the most that it gives.
	memoryBytes    = 4 << 20
	maxMemoryBytes = 16 << 20
	// answerBytes is what an answer of a capacity counts for.
	answerBytes = 512
	// maxAnswer is the largest answer worth the room.
	maxAnswer = 4 << 10
	// overhead is about what an answer takes beside its own bytes and its name.
	overhead = 320
	// sample is how many answers are looked at to find one to give up.
	sample = 8
)

func newMemory(bytes int) *memory {
	m := &memory{seed: maphash.MakeSeed()}
	for i := range m.parts {
		p := &m.parts[i]
		p.most, p.answers, p.flights = bytes/len(m.parts), map[question]*stored{}, map[question]*flight{}
	}
	return m
}

func (m *memory) part(name string) *part {
	return &m.parts[maphash.String(m.seed, name)%uint64(len(m.parts))]
}

// find is what a client's question is answered at once; it allocates nothing.
func (m *memory) find(q *query, now time.Time) *stored {
	p := &m.parts[maphash.Bytes(m.seed, q.lower)%uint64(len(m.parts))]
	p.mu.Lock()
	s := p.answers[question{name: string(q.lower), qtype: q.qtype, class: q.class, edns: q.edns, do: q.do, cd: q.message[3]&0x10 != 0}]
	p.mu.Unlock()
	if s == nil || !s.valid(now) {
		return nil
	}
	s.hit(now)
	return s
}

// hit counts a use; a long pause begins anew.
func (s *stored) hit(now time.Time) {
	if s.server != nil && s.server.Cache != nil && s.source == fromForward {
		if at := now.UnixNano(); at-s.lastHit.Swap(at) > int64(s.server.Cache.PrefetchGap) {
			s.hits.Store(0)
		}
	}
	s.hits.Add(1)
}

// recall gives what is remembered, be its time over or not.
func (p *part) recall(key question) *stored {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answers[key]
}

// remember keeps an answer while it is of use.
func (p *part) remember(key question, s *stored) {
	if len(s.wire) > maxAnswer {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(key)
	p.answers[key] = s
	p.bytes += cost(key, s)
	for p.bytes > p.most {
		least := p.least()
		denial := 0
		if p.answers[least].isDenial {
			denial = 1
		}
		p.evicted[denial]++
		p.forget(least)
	}
}

func cost(key question, s *stored) int {
	return len(s.wire) + 2*len(s.ttls) + len(key.name) + overhead
}

func (p *part) forget(key question) {
	if old, ok := p.answers[key]; ok {
		p.bytes -= cost(key, old)
		delete(p.answers, key)
	}
}

// least is, of a few answers, the one that was asked for least often, and of
// those the one that ends first.
func (p *part) least() (key question) {
	seen, hits, until := 0, int32(0), time.Time{}
	for k, s := range p.answers {
		if h := s.hits.Load(); seen == 0 || h < hits || h == hits && s.until.Before(until) {
			key, hits, until = k, h, s.until
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
