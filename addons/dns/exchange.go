package dns

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// errForged says that somebody sends answers to questions that were not asked.
var errForged = errors.New("too many answers to other questions")

// maxForged is how many such answers are passed over before the question is
// asked by TCP, where others cannot answer.
const maxForged = 32

// exchange asks a server, from a port and with an id that are new each time,
// since both are what an answer from elsewhere must guess. What does not answer
// the question is passed over.
func exchange(key question, network, server string, end time.Time, limit time.Duration) (*dns.Msg, error) {
	if by := time.Now().Add(limit); by.Before(end) {
		end = by
	}
	dialer := net.Dialer{Deadline: end}
	c, err := dialer.Dial(network, server)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", server, err)
	}
	conn := &dns.Conn{Conn: c, UDPSize: udpSize}
	defer conn.Close()
	if err := conn.SetDeadline(end); err != nil {
		return nil, fmt.Errorf("ask %s: %w", server, err)
	}
	q := key.message()
	if err := conn.WriteMsg(q); err != nil {
		return nil, fmt.Errorf("ask %s: %w", server, err)
	}
	for range maxForged {
		m, err := conn.ReadMsg()
		if err == nil && answers(m, q) {
			return m, nil
		}
		if _, ended := errors.AsType[net.Error](err); ended {
			return nil, fmt.Errorf("ask %s: %w", server, err)
		}
		if network == "tcp" {
			return nil, fmt.Errorf("ask %s: not the answer: %w", server, cmp.Or(err, errForged))
		}
	}
	return nil, fmt.Errorf("ask %s: %w", server, errForged)
}

// answers reports whether m is the answer to q. Pure.
func answers(m, q *dns.Msg) bool {
	if !m.Response || m.Id != q.Id || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
		return false
	}
	is, was := m.Question[0], q.Question[0]
	return is.Qtype == was.Qtype && is.Qclass == was.Qclass && strings.EqualFold(is.Name, was.Name)
}
