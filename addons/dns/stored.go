package dns

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// stored is an answer as it is sent: a client's id, its flags, the spelling of
// the name and what is left of the records' time are put into a copy.
type stored struct {
	wire []byte
	ttls []uint16 // where the records' times are
	// addresses are the records of addresses, alike in size and one after the
	// other, which are shuffled for each client.
	addresses struct{ at, size, n int }

	server *server // the block of the configuration that answered
	source source

	// Of names of elsewhere.
	began, until time.Time
	stale        time.Time // until when it is better than none
	keepTTL      bool
	hits         atomic.Int32
	lastHit      atomic.Int64
	prefetched   atomic.Bool
	retry        atomic.Int64 // not asked again before, when servers have failed

	// Of names of the cluster: valid while nothing has changed.
	changes  *atomic.Uint64
	change   uint64
	isDenial bool
}

// source says where an answer comes from, by the name of CoreDNS' plugin.
type source uint8

const (
	fromNowhere source = iota
	fromKubernetes
	fromHosts
	fromForward
	fromMany // several, so that nothing tells when it ends
)

var pluginOf = [...]string{"", "kubernetes", "hosts", "forward", "forward"}

// staleTTL is what RFC 8767 recommends for an answer whose time is over.
const staleTTL = 30

var errRecords = errors.New("the records cannot be read")

// newStored packs an answer; its question is in lower case.
func newStored(m *dns.Msg) (*stored, error) {
	m.Truncate(dns.MaxMsgSize)
	m.Compress = true
	wire, err := m.Pack()
	if err != nil {
		return nil, err
	}
	s := &stored{wire: wire, isDenial: m.Rcode == dns.RcodeNameError || len(m.Answer) == 0}
	at, ok := headerSize, true
	for range m.Question {
		if at, ok = skipName(wire, at); !ok {
			return nil, errRecords
		}
		at += 4
	}
	for i := range len(m.Answer) + len(m.Ns) + len(m.Extra) {
		begin := at
		if at, ok = skipName(wire, at); !ok || at+10 > len(wire) {
			return nil, errRecords
		}
		kind := binary.BigEndian.Uint16(wire[at:])
		s.ttls = append(s.ttls, uint16(at+4))
		at += 10 + int(binary.BigEndian.Uint16(wire[at+8:]))
		// Only owners that are pointers: nothing points into what is moved.
		if a := &s.addresses; i < len(m.Answer) && wire[begin] >= 0xc0 && (kind == dns.TypeA || kind == dns.TypeAAAA) {
			switch {
			case a.n == 0:
				a.at, a.size, a.n = begin, at-begin, 1
			case begin == a.at+a.n*a.size && at-begin == a.size:
				a.n++
			}
		}
	}
	if at > len(wire) {
		return nil, errRecords
	}
	return s, nil
}

// skipName is where a name of a packed message ends.
func skipName(wire []byte, at int) (int, bool) {
	for at < len(wire) {
		switch n := int(wire[at]); {
		case n == 0:
			return at + 1, true
		case n >= 0xc0:
			return at + 2, at+2 <= len(wire)
		default:
			at += 1 + n
		}
	}
	return at, false
}

// valid reports whether what was stored is still so. Of names of elsewhere it is,
// until their time is over.
func (s *stored) valid(now time.Time) bool {
	if s.changes != nil {
		return s.changes.Load() == s.change
	}
	return now.Before(s.until)
}

// absent says that there is no such name.
func (s *stored) absent() bool {
	return len(s.wire) >= headerSize && s.wire[3]&0xf == dns.RcodeNameError
}

// unpacked is the answer with what is left of its records' time.
func (s *stored) unpacked(now time.Time) (*dns.Msg, error) {
	wire := slices.Clone(s.wire)
	if !s.until.IsZero() && !s.keepTTL {
		s.age(wire, now)
	}
	m := new(dns.Msg)
	return m, m.Unpack(wire)
}

// appendTo appends the answer to a query; it allocates nothing if there is room.
// false: it is larger than the client takes.
func (s *stored) appendTo(out []byte, q *query, now time.Time) ([]byte, bool) {
	size := len(s.wire)
	if q.edns {
		size += optSize
	}
	if size > q.size {
		return out, false
	}
	base := len(out)
	out = append(out, s.wire...)
	m := out[base:]
	copy(m, q.message[:2])
	m[2] = m[2]&^1 | q.message[2]&1       // RD
	m[3] = m[3]&^0x10 | q.message[3]&0x10 // CD
	copy(m[headerSize:], q.name)
	if !s.until.IsZero() && !s.keepTTL {
		s.age(m, now)
	}
	if s.addresses.n > 1 && s.server != nil && s.server.LoadBalance {
		s.shuffle(m)
	}
	if q.edns {
		out = appendOPT(out, q.do)
		binary.BigEndian.PutUint16(out[base+10:], binary.BigEndian.Uint16(out[base+10:])+1)
	}
	return out, true
}

// age makes no record's time longer than what is left of the answer's.
func (s *stored) age(m []byte, now time.Time) {
	left := uint32(staleTTL)
	if now.Before(s.until) {
		left = uint32(s.until.Sub(now)/time.Second) + 1
	}
	for _, at := range s.ttls {
		if binary.BigEndian.Uint32(m[at:]) > left {
			binary.BigEndian.PutUint32(m[at:], left)
		}
	}
}

// shuffle puts the records of addresses into a random order.
func (s *stored) shuffle(m []byte) {
	var swap [64]byte
	a := s.addresses
	if a.size > len(swap) {
		return
	}
	for i := a.n - 1; i > 0; i-- {
		j := int(rand.Uint32N(uint32(i + 1)))
		x, y := m[a.at+i*a.size:][:a.size], m[a.at+j*a.size:][:a.size]
		copy(swap[:], x)
		copy(x, y)
		copy(y, swap[:a.size])
	}
}

const optSize = 11

// appendOPT appends EDNS as this server has it.
func appendOPT(out []byte, do bool) []byte {
	flags := byte(0)
	if do {
		flags = 0x80
	}
	return append(out, 0, 0, byte(dns.TypeOPT), udpSize>>8, udpSize&0xff, 0, 0, flags, 0, 0, 0)
}

// truncated is the answer as far as the client takes it.
func (s *stored) truncated(q *query, now time.Time) ([]byte, error) {
	large := *q
	large.size, large.edns = dns.MaxMsgSize+optSize, false
	out, _ := s.appendTo(nil, &large, now)
	m := new(dns.Msg)
	if err := m.Unpack(out); err != nil {
		return nil, err
	}
	if q.edns {
		m.SetEdns0(udpSize, q.do)
	}
	m.Truncate(q.size)
	return m.Pack()
}
