package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"knarr/controlplane/apiserver/authn"
)

// grace is how long requests under way may take once a listener closes, unless
// late ones are told to come again.
const grace = time.Second

// Serve answers on l until ctx ends, over TLS when config is not nil. Then
// /readyz fails, requests are served for as long as the delay says, watches
// end, and requests under way get a moment.
func (s *Server) Serve(ctx context.Context, l net.Listener, config *tls.Config) error {
	ending, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	base, cancel := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), endingKey{}, ending))
	defer cancel()
	srv := &http.Server{
		Handler:           s.handler,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       authn.ConnContext,
		ReadHeaderTimeout: 32 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    1 << 20,
		TLSConfig:         config.Clone(),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: s.cfg.Streams},
		ErrorLog:          log.New(quiet{s.metrics.Requests}, "", 0),
	}
	if config != nil {
		if err := gatherStreams(srv); err != nil {
			return fmt.Errorf("serve HTTP/2: %w", err)
		}
	}
	down := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(down)
		s.health.stopping.Store(true)
		if s.cfg.ShutdownDelay > 0 {
			<-time.After(s.cfg.ShutdownDelay)
		}
		end()
		if s.cfg.RetryLate {
			select {
			case <-s.turns.finish():
			case <-time.After(s.cfg.RequestTimeout):
			}
		}
		ctx, done := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer done()
		if srv.Shutdown(ctx) != nil {
			cancel()
			_ = srv.Close()
		}
	})
	var err error
	if config != nil {
		err = srv.ServeTLS(corking{l}, "", "")
	} else {
		err = srv.Serve(l)
	}
	if !stop() {
		<-down
	}
	if ctx.Err() != nil && (errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed)) {
		return nil
	}
	return fmt.Errorf("serve the API on %s: %w", l.Addr(), err)
}

type endingKey struct{}

// untilEnd is ctx for a long-running request: it is over when the server wants
// to end, which others need not notice.
func untilEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	ending, _ := ctx.Value(endingKey{}).(context.Context)
	if ending == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ending, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// turns are the requests under way.
type turns struct {
	mu    sync.Mutex
	n     int
	over  bool
	empty chan struct{} // closed when it is over and the last one has left
}

// enter is false when it is over. Who stays must leave.
func (t *turns) enter(stays bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	if stays {
		t.n++
	}
	return true
}

func (t *turns) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.over && t.n == 0 {
		close(t.empty)
	}
}

// finish lets nobody in any longer; what it returns is closed when nobody is
// left.
func (t *turns) finish() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.over, t.empty = true, make(chan struct{})
		if t.n == 0 {
			close(t.empty)
		}
	}
	return t.empty
}

// enter is false for a request that came too late, and has been told so. leave
// is to be called once the request has been answered.
func (s *Server) enter(w http.ResponseWriter, path string, long bool) (leave func(), ok bool) {
	if !s.cfg.RetryLate || isHealth(path) || path == "/metrics" {
		return nil, true
	}
	if !s.turns.enter(!long) { // those that are long end by themselves
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", "5")
		http.Error(w, "The apiserver is shutting down, please try again later.", http.StatusTooManyRequests)
		return nil, false
	}
	if long {
		return nil, true
	}
	return s.turns.leave, true
}

// goaway ends some HTTP/2 connections after their request.
func (s *Server) goaway(w http.ResponseWriter, r *http.Request) {
	if s.cfg.GoawayChance > 0 && r.ProtoMajor == 2 && rand.Float64() < s.cfg.GoawayChance {
		w.Header().Set("Connection", "close")
	}
}
