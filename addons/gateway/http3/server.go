// Package http3 serves HTTP/3: it calls a handler for each request stream of a QUIC
// connection. QUIC is quic-go's; frames, fields and limits are read and kept here. It reads
// and writes a socket for datagrams.
package http3

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"knarr/internal/run"
)

// Limits of a connection.
const (
	maxStreams    = 250       // requests at once, with their handlers
	maxControls   = 16        // streams that carry no requests
	maxHead       = 64 << 10  // bytes of a request's fields
	maxFields     = 256       // of a request
	maxSkipped    = 64 << 10  // bytes of frames that mean nothing, for a request
	streamWindow  = 256 << 10 // that a client may send of one body before it is read
	connWindow    = 1 << 20   // of all bodies
	maxCanceled   = 200       // streams that the client gave up in cancelTime, beyond those that were answered
	cancelTime    = 10 * time.Second
	headerTime    = 10 * time.Second // for a handshake, and for a request's head
	stallTime     = 60 * time.Second // in which a stream must send or take something
	idleTime      = 75 * time.Second
	drainTime     = time.Second            // in which streams that are on their way are still taken
	lingerTime    = 500 * time.Millisecond // in which a client takes the last answer
	maxHandshakes = 64                     // that may be under way before clients must show that their addresses are theirs
)

// Config is what a Server serves, and for whom.
type Config struct {
	// Handler is called for each request.
	Handler http.Handler
	// TLS says how connections are encrypted; those that it returns for clients have "h3"
	// alone among their protocols.
	TLS *tls.Config
	// ResetKey makes the resets that end connections of a process that is gone: one that
	// the next process has as well spares clients the wait for answers. Default: none.
	ResetKey *[32]byte
	// Enter counts a connection of a client in, and says how it is counted out; nil if there
	// are too many.
	Enter func(client netip.Addr) (leave func())
}

// A Server serves the connections of one socket.
type Server struct {
	config      Config
	socket      net.PacketConn
	transport   *quic.Transport
	listener    *quic.Listener
	group       run.Group
	handshaking atomic.Int64

	mu      sync.Mutex
	conns   map[*conn]struct{}
	leaving bool
	idle    sync.Cond
}

// Protocol is what is agreed on in a handshake.
const Protocol = "h3"

// Open serves at a socket until Close, which closes it.
func Open(socket net.PacketConn, config Config) (*Server, error) {
	s := &Server{config: config, socket: socket, conns: map[*conn]struct{}{}}
	s.idle.L = &s.mu
	s.transport = &quic.Transport{
		Conn:                socket,
		VerifySourceAddress: func(net.Addr) bool { return s.handshaking.Load() >= maxHandshakes },
		ConnContext:         s.enter,
		StatelessResetKey:   (*quic.StatelessResetKey)(config.ResetKey),
	}
	var err error
	s.listener, err = s.transport.Listen(config.TLS, &quic.Config{
		HandshakeIdleTimeout: headerTime / 2, MaxIdleTimeout: idleTime,
		InitialStreamReceiveWindow: streamWindow, MaxStreamReceiveWindow: streamWindow,
		InitialConnectionReceiveWindow: connWindow, MaxConnectionReceiveWindow: connWindow,
		MaxIncomingStreams: maxStreams, MaxIncomingUniStreams: maxControls,
		RequireStreamCreditRelease: true, // a stream counts for as long as its handler runs
	})
	if err != nil {
		_ = s.transport.Close()
		_ = socket.Close()
		return nil, err
	}
	s.group.Go("gateway HTTP/3 listener", s.accept)
	return s, nil
}

type attemptKey struct{}

var errTooMany = errors.New("too many connections")

// enter counts a connection in when its first packet comes.
func (s *Server) enter(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	at, err := netip.ParseAddrPort(info.RemoteAddr.String())
	if err != nil {
		return nil, errTooMany
	}
	leave := s.config.Enter(at.Addr())
	if leave == nil {
		return nil, errTooMany
	}
	s.handshaking.Add(1)
	shaken := sync.OnceFunc(func() { s.handshaking.Add(-1) })
	context.AfterFunc(ctx, func() {
		shaken()
		leave()
	})
	return context.WithValue(ctx, attemptKey{}, shaken), nil
}

func (s *Server) accept() {
	for {
		q, err := s.listener.Accept(context.Background())
		if err != nil {
			return // the listener was closed
		}
		if shaken, ok := q.Context().Value(attemptKey{}).(func()); ok {
			shaken()
		}
		c := newConn(s, q)
		if !s.add(c) {
			run.Go("gateway: refuse HTTP/3", func() { _ = q.CloseWithError(quic.ApplicationErrorCode(noError), "") })
			continue
		}
		run.Go("gateway HTTP/3 connection", func() {
			defer s.remove(c)
			defer c.close(internalError) // if it ends by a panic
			c.serve()
		})
	}
}

func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.idle.Broadcast()
}

// Stop takes no further connections. The socket stays: it carries those that there are.
func (s *Server) Stop() { _ = s.listener.Close() }

// Close lets the requests end, takes no further connections, and says so to the clients.
// When ctx ends, everything does. The socket is closed at the end: until then it carries
// the connections.
func (s *Server) Close(ctx context.Context) {
	s.Stop()
	s.mu.Lock()
	s.leaving = true
	for c := range s.conns {
		c.leave()
	}
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			run.Go("gateway: end HTTP/3", func() { c.close(noError) })
		}
	})
	defer stop()
	s.mu.Lock()
	for len(s.conns) > 0 {
		s.idle.Wait()
	}
	s.mu.Unlock()
	_ = s.transport.Close()
	_ = s.socket.Close()
	s.group.Wait()
}
