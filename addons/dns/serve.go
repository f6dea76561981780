package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/miekg/dns"

	"knarr/internal/run"
)

// maxQueries is how many queries that are not answered from memory there may be at a time.
const maxQueries = 2000

// maxFailedReads is after how many in a row a socket is given up.
const maxFailedReads = 100

// readers is how many goroutines read a socket: more than one, since the one that
// reads answers too.
var readers = min(runtime.GOMAXPROCS(0), 8)

// serveUDP answers what comes by a socket until it is closed.
func (s *Server) serveUDP(socket *net.UDPConn) error {
	b, err := newBatch(socket)
	if err != nil {
		return fmt.Errorf("read queries: %w", err)
	}
	lower := make([]byte, 0, 256)
	for failed := 0; ; {
		queries, err := b.read()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil { // of one datagram, unless it goes on
			if failed++; failed == maxFailedReads {
				return fmt.Errorf("read queries: %w", err)
			}
			continue
		}
		failed = 0
		for i := range queries {
			s.serveQuery(socket, &queries[i], lower)
		}
		if b.send(queries) != nil {
			return nil // it is closed
		}
	}
}

// serveQuery answers a query at once, or has that done.
func (s *Server) serveQuery(socket *net.UDPConn, d *datagram, lower []byte) {
	client := d.client()
	if !s.answers(client.Addr()) {
		return
	}
	var done bool
	if d.answer, done = s.atOnce(d.query[:d.n], lower, d.room, client.Addr()); done {
		return
	}
	copied := append([]byte(nil), d.query[:d.n]...)
	run.Go("DNS: answer", func() {
		defer s.queries.release(client.Addr())
		if answer := s.later(copied, client.Addr(), false); len(answer) > 0 {
			_, _ = socket.WriteToUDPAddrPort(answer, client) // the client asks again
		}
	})
}

// atOnce answers from memory, and what needs no look; not done: the caller has a
// place among the queries, and answers later.
func (s *Server) atOnce(message, lower, out []byte, client netip.Addr) (answer []byte, done bool) {
	var q query
	switch q.read(message, lower, false) {
	case ignored:
		return nil, true
	case refused:
		return appendError(out, message, dns.RcodeNotImplemented), true
	case malformed:
		return appendError(out, message, dns.RcodeFormatError), true
	}
	p, now := s.plan.Load(), time.Now()
	if a := p.memory.find(&q, now); a != nil && a.server != nil && !a.server.Log {
		if out, ok := a.appendTo(out, &q, now); ok {
			s.count(p, &q, false, client, a, len(out), now, true)
			return out, true
		}
	}
	if !s.queries.take(client.Unmap()) {
		s.metrics.rejects.Inc()
		return appendError(out, message, dns.RcodeServerFailure), true
	}
	return nil, false
}

// count counts an answer, and has a popular one asked for again in time.
func (s *Server) count(p *plan, q *query, stream bool, client netip.Addr, a *stored, size int, began time.Time, hit bool) {
	if a.server == nil {
		return
	}
	c := a.server.counters
	c.count(q, stream, client.Is6() && !client.Is4In6(), a, size, time.Since(began))
	if a.source == fromForward {
		s.metrics.cacheRequests.Inc()
		if hit {
			c.hits[boolInt(a.isDenial)].Inc()
			if a.due(began) {
				s.prefetch(a, q.key())
			}
		}
	}
}

// later answers what is not in memory, or is larger than the client takes.
func (s *Server) later(message []byte, client netip.Addr, stream bool) (answer []byte) {
	defer func() {
		if p := recover(); p != nil {
			slog.Error("panic in DNS answer", "panic", p, "stack", string(debug.Stack()))
			run.CountPanic("dns answer")
			if len(message) >= headerSize {
				answer = appendError(nil, message, dns.RcodeServerFailure)
			}
		}
	}()
	var q query
	switch q.read(message, make([]byte, 0, 256), stream) {
	case ignored:
		return nil
	case refused:
		return appendError(nil, message, dns.RcodeNotImplemented)
	case malformed:
		return appendError(nil, message, dns.RcodeFormatError)
	}
	began, p := time.Now(), s.plan.Load()
	a := s.resolve(p, q.key(), client.Unmap(), 0)
	out, ok := a.appendTo(make([]byte, 0, len(a.wire)+optSize), &q, time.Now())
	if !ok {
		var err error
		if out, err = a.truncated(&q, time.Now()); err != nil {
			return appendError(nil, message, dns.RcodeServerFailure)
		}
	}
	s.count(p, &q, stream, client, a, len(out), began, false)
	if a.server != nil && a.server.Log {
		slog.Info("DNS query", "client", client, "id", uint16(message[0])<<8|uint16(message[1]), "type", dns.Type(q.qtype).String(), "name", q.key().text(),
			"tcp", stream, "bytes", len(message), "do", q.do, "bufsize", q.size, "rcode", dns.RcodeToString[int(out[3]&0xf)], "answer", len(out), "took", time.Since(began))
	}
	return out
}

// ServeDNS answers one query that a library has read: those by TCP, and those at
// sockets of which only the library knows where a query was sent to.
func (s *Server) ServeDNS(w dns.ResponseWriter, m *dns.Msg) {
	defer run.Recover("dns answer")
	message, err := m.Pack()
	if err != nil {
		return
	}
	stream := w.LocalAddr().Network() == "tcp"
	client := clientOf(w.RemoteAddr())
	if !s.answers(client) {
		return
	}
	if s.queries != nil {
		if !s.queries.take(client) {
			_, _ = w.Write(appendError(nil, message, dns.RcodeServerFailure))
			return
		}
		defer s.queries.release(client)
	}
	if answer := s.later(message, client, stream); len(answer) > 0 {
		_, _ = w.Write(answer)
	}
}

// listen opens the sockets of an address; what is returned serves them.
func (s *Server) listen(at netip.AddrPort, streams *fairLimiter) (serve []func() error, stop func(), err error) {
	packets, err := s.cfg.Sockets.ListenPacket("udp", at.String())
	if err != nil {
		return nil, nil, fmt.Errorf("dns: listen: %w", err)
	}
	stream, err := s.cfg.Sockets.Listen("tcp", at.String())
	if err != nil {
		packets.Close()
		return nil, nil, fmt.Errorf("dns: listen: %w", err)
	}
	tcp := &dns.Server{Listener: sharedListener{stream, streams, s.answers}, Handler: s, MaxTCPQueries: -1}
	serve = append(serve, tcp.ActivateAndServe)
	if socket, ok := packets.(*net.UDPConn); ok && !at.Addr().IsUnspecified() {
		for range readers {
			serve = append(serve, func() error { return s.serveUDP(socket) })
		}
		return serve, func() { packets.Close(); shutdown(tcp) }, nil
	}
	udp := &dns.Server{PacketConn: packets, Handler: s, UDPSize: dns.DefaultMsgSize}
	return append(serve, udp.ActivateAndServe), func() { shutdown(udp); shutdown(tcp) }, nil
}

// shutdownTime is what answers under way may still take at the end.
const shutdownTime = time.Second

func shutdown(s *dns.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	_ = s.ShutdownContext(ctx)
}
