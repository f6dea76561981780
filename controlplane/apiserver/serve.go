package apiserver

import (
	"context"
	"crypto/tls"
	"log"
	"net"

	"knarr/controlplane/apiserver/authn"
	"knarr/controlplane/apiserver/transport"
	"knarr/internal/memnet"
)

// Serve answers on l until ctx ends, over TLS when config is not nil. Then
// /readyz fails, and the shutdown is that of transport.Server.
func (s *Server) Serve(ctx context.Context, l net.Listener, config *tls.Config) error {
	s.listening.add(l.Addr())
	defer s.listening.remove(l.Addr())
	return s.transport().Serve(ctx, l, config)
}

// ServeLoopback answers requests of this process at d until ctx ends, as Serve does.
func (s *Server) ServeLoopback(ctx context.Context, d *memnet.Loopback) error {
	return s.transport().ServeLoopback(ctx, d, authn.InProcess)
}

func (s *Server) transport() *transport.Server {
	srv := &transport.Server{
		Handler: s.handler, ConnContext: authn.ConnContext, ErrorLog: log.New(quiet{s.metrics.Requests}, "", 0),
		RequestTimeout: s.cfg.RequestTimeout, MaxStreams: s.cfg.Streams,
		Stopping: func() { s.health.stopping.Store(true) }, ShutdownDelay: s.cfg.ShutdownDelay,
	}
	if s.cfg.ShutdownSendRetryAfter {
		srv.InFlight = &s.inFlight
	}
	return srv
}
