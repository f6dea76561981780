package dns

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// A question is what decides on its answer.
type question struct {
	name         string // as in messages, in lower case
	qtype, class uint16
	edns, do, cd bool
	forward      uint8 // the servers that were asked; 0 is what clients are answered
}

// text is the name as people write it.
func (k question) text() string {
	name, _, err := dns.UnpackDomainName([]byte(k.name), 0)
	if err != nil {
		return "."
	}
	return name
}

// message is the question as servers are asked it: nothing of the client's own
// message goes with it.
func (k question) message() *dns.Msg {
	m := &dns.Msg{Question: []dns.Question{{Name: k.text(), Qtype: k.qtype, Qclass: k.class}}}
	m.Id, m.RecursionDesired, m.CheckingDisabled = dns.Id(), true, k.cd
	if k.edns {
		m.SetEdns0(udpSize, k.do)
	}
	return m
}

// query is what is read of a client's message in place.
type query struct {
	message []byte // the client's
	name    []byte // as spelled
	lower   []byte // in lower case
	qtype   uint16
	class   uint16
	end     int // of the question
	edns    bool
	do      bool
	size    int // of an answer, at most
}

const headerSize = 12

// what a message is.
const (
	ignored   = iota // no query at all
	refused          // a query, but not one question
	ordinary         // one question, and EDNS perhaps
	malformed        // cannot be read
)

// read reads a message that came by UDP, and by TCP if stream. lower is a buffer of
// at least 256 bytes. It allocates nothing.
func (q *query) read(message, lower []byte, stream bool) int {
	if len(message) < headerSize || message[2]&0x80 != 0 {
		return ignored // answers are not answered
	}
	if message[2]>>3&0xf != dns.OpcodeQuery {
		return refused
	}
	counts := message[4:headerSize]
	if binary.BigEndian.Uint16(counts) != 1 || binary.BigEndian.Uint16(counts[2:]) != 0 || binary.BigEndian.Uint16(counts[4:]) != 0 {
		return malformed
	}
	at := headerSize
	for {
		if at >= len(message) || message[at] > 63 || at-headerSize+int(message[at]) > 254 {
			return malformed
		}
		n := int(message[at])
		at += 1 + n
		if n == 0 {
			break
		}
	}
	if at+4 > len(message) {
		return malformed
	}
	*q = query{message: message, name: message[headerSize:at], size: dns.MinMsgSize}
	q.qtype, q.class = binary.BigEndian.Uint16(message[at:]), binary.BigEndian.Uint16(message[at+2:])
	q.lower = append(lower[:0], q.name...)
	for i, c := range q.lower { // lengths are below the letters
		if 'A' <= c && c <= 'Z' {
			q.lower[i] = c + 'a' - 'A'
		}
	}
	q.end = at + 4
	return q.options(message[q.end:], int(binary.BigEndian.Uint16(counts[6:])), stream)
}

// options reads what follows the question: EDNS, and records of no interest.
func (q *query) options(rest []byte, records int, stream bool) int {
	if stream {
		q.size = dns.MaxMsgSize
	}
	if records == 0 {
		return ordinary
	}
	if records > 2 || len(rest) < 11 || rest[0] != 0 {
		return malformed
	}
	if binary.BigEndian.Uint16(rest[1:]) != dns.TypeOPT {
		return ordinary // a signature, which is not looked at
	}
	if rest[6] != 0 {
		return malformed // another version of EDNS
	}
	q.edns, q.do = true, rest[7]&0x80 != 0
	if !stream {
		q.size = max(q.size, min(int(binary.BigEndian.Uint16(rest[3:])), udpSize))
	}
	return ordinary
}

// key is the question; what it points to lives as long as the message.
func (q *query) key() question {
	return question{name: string(q.lower), qtype: q.qtype, class: q.class, edns: q.edns, do: q.do, cd: q.message[3]&0x10 != 0}
}

// appendError appends an answer that has the question alone.
func appendError(out, message []byte, rcode byte) []byte {
	out = append(out, message[:headerSize]...)
	out[2] = message[2]&0x79 | 0x80 // the opcode and whether recursion is desired
	out[3] = 0x80 | rcode
	clear(out[4:headerSize])
	if q := (query{}); rcode != dns.RcodeFormatError && q.read(message, make([]byte, 0, 256), true) == ordinary {
		out[5] = 1
		out = append(out, message[headerSize:q.end]...)
	}
	return out
}
