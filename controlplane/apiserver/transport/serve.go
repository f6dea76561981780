// Package transport serves HTTP/1 and HTTP/2 on connections whose cost is bounded, and
// requests of this process without one: it batches and coalesces writes, ends
// connections whose client reads nothing, and drains requests at shutdown. It reads
// and writes connections, and nothing else.
package transport

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"knarr/internal/headerlimit"
	"knarr/internal/logonce"
)

// Grace is how long requests under way may take once a listener closes, unless
// late ones are asked to retry, and how much longer than its request an answer
// may take to be sent.
const Grace = time.Second

const (
	// maxUnauthenticated is how many connections there are on which nobody was authenticated.
	maxUnauthenticated = 2000
	// maxHeader bounds a header, which commands of exec and lists of selectors may need,
	// maxStreamHeader one of HTTP/2, which counts 32 bytes for each line.
	maxHeader       = 1 << 20
	maxStreamHeader = 256 << 10
)

// A Server answers requests on listeners.
type Server struct {
	Handler http.Handler
	// ConnContext adds to the context of a connection's requests.
	ConnContext func(context.Context, net.Conn) context.Context
	ErrorLog    *log.Logger
	// RequestTimeout bounds the sending of each answer, together with Grace.
	// Long-running requests lift it.
	RequestTimeout time.Duration
	// MaxStreams bounds the requests at once on an HTTP/2 connection.
	MaxStreams int
	// Stopping is called when the shutdown begins, ShutdownDelay before requests
	// are no longer served.
	Stopping      func()
	ShutdownDelay time.Duration
	// InFlight are the requests that the listener is kept open for after that, so
	// that others are refused rather than find nobody; nil: it closes at once.
	InFlight *InFlight

	unauthenticated int // connections; 0: maxUnauthenticated
}

// Serve answers on l until ctx ends, over TLS when config is not nil. Then
// requests are served for as long as the delay says, watches end, and requests
// under way get a moment.
func (s *Server) Serve(ctx context.Context, l net.Listener, config *tls.Config) error {
	life := s.begin(ctx)
	defer life.end()
	srv := &http.Server{
		Handler:           s.Handler,
		BaseContext:       func(net.Listener) context.Context { return life.base },
		ConnContext:       s.ConnContext,
		ReadHeaderTimeout: 32 * time.Second,
		WriteTimeout:      s.RequestTimeout + Grace, // of each answer; long-running requests lift it
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    maxHeader,
		TLSConfig:         config.Clone(),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: s.MaxStreams},
		ErrorLog:          s.ErrorLog,
	}
	if config != nil {
		if err := batchStreams(srv); err != nil {
			return fmt.Errorf("serve HTTP/2: %w", err)
		}
	}
	stopped := life.onStop(func(ctx context.Context) {
		if srv.Shutdown(ctx) != nil {
			life.cancel()
			_ = srv.Close()
		}
	})
	var err error
	if config != nil {
		l = headerlimit.Bound(srv, l, cmp.Or(s.unauthenticated, maxUnauthenticated), logClosed())
		err = srv.ServeTLS(coalescingListener{l}, "", "")
	} else {
		err = srv.Serve(l)
	}
	stopped()
	if ctx.Err() != nil && (errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed)) {
		return nil
	}
	return fmt.Errorf("serve the API on %s: %w", l.Addr(), err)
}

// logClosed logs why connections of a client are closed, now and then.
func logClosed() func(why string, client netip.Addr) {
	var seen logonce.Filter
	return func(why string, client netip.Addr) {
		if seen.IsNew(why, client.String()) {
			slog.Warn(why, "client", client)
		}
	}
}
