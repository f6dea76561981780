package dns

import (
	"cmp"
	"context"
	"crypto/tls"
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

// exchange asks a server: by UDP, and by TCP what is longer or is interfered with.
// A server that does not know EDNS is asked without.
func (f *forwarder) exchange(key question, u *upstream, end time.Time, limit time.Duration) (*dns.Msg, error) {
	network := "udp"
	switch {
	case u.TLS:
		network = "tcp-tls"
	case f.cfg.ForceTCP:
		network = "tcp"
	}
	limits := map[string]time.Duration{"udp": min(limit, udpTime), "tcp": min(max(limit, udpTime), tcpTime), "tcp-tls": min(max(limit, udpTime), tcpTime)}
	m, err := f.exchangeBy(key, network, u, end, limits[network])
	if network == "udp" && (err == nil && m.Truncated || errors.Is(err, errForged)) {
		network = "tcp"
		m, err = f.exchangeBy(key, network, u, end, limits[network])
	}
	if err == nil && key.edns && (m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) {
		key.edns = false
		m, err = f.exchangeBy(key, network, u, end, limits[network])
	}
	return m, err
}

// exchangeBy asks a server, from a port and with an id that are new each time,
// since both are what an answer from elsewhere must guess. What does not answer
// the question is passed over.
func (f *forwarder) exchangeBy(key question, network string, u *upstream, end time.Time, limit time.Duration) (*dns.Msg, error) {
	if by := time.Now().Add(limit); by.Before(end) {
		end = by
	}
	dialer := &net.Dialer{Deadline: end}
	c, err := dialer.DialContext(f.ctx, strings.TrimSuffix(network, "-tls"), u.Address)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", u.Address, err)
	}
	if network == "tcp-tls" {
		c = tls.Client(c, u.tlsConfig())
	}
	conn := &dns.Conn{Conn: c, UDPSize: udpSize}
	defer conn.Close()
	defer context.AfterFunc(f.ctx, func() { c.Close() })()
	if err := conn.SetDeadline(end); err != nil {
		return nil, fmt.Errorf("ask %s: %w", u.Address, err)
	}
	q := key.message()
	if f.cfg.NoRecursion && key.name == "\x00" {
		q.RecursionDesired = false
	}
	if err := conn.WriteMsg(q); err != nil {
		return nil, fmt.Errorf("ask %s: %w", u.Address, err)
	}
	for range maxForged {
		m, err := conn.ReadMsg()
		if err == nil && answers(m, q) {
			return m, nil
		}
		if _, ended := errors.AsType[net.Error](err); ended {
			return nil, fmt.Errorf("ask %s: %w", u.Address, err)
		}
		if network != "udp" {
			return nil, fmt.Errorf("ask %s: not the answer: %w", u.Address, cmp.Or(err, errForged))
		}
	}
	return nil, fmt.Errorf("ask %s: %w", u.Address, errForged)
}

// answers reports whether m is the answer to q. Pure.
func answers(m, q *dns.Msg) bool {
	if !m.Response || m.Id != q.Id || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
		return false
	}
	is, was := m.Question[0], q.Question[0]
	return is.Qtype == was.Qtype && is.Qclass == was.Qclass && strings.EqualFold(is.Name, was.Name)
}
