package transport

import (
	"context"
	"time"
)

// A life is that of requests which come in by one way, from its begin to the end of a
// shutdown.
type life struct {
	s      *Server
	ctx    context.Context
	base   context.Context // of the requests
	cancel context.CancelFunc
	ending context.CancelFunc // of long-running requests
}

func (s *Server) begin(ctx context.Context) *life {
	ending, end := context.WithCancel(context.WithoutCancel(ctx))
	base, cancel := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), shutdownKey{}, ending))
	return &life{s: s, ctx: ctx, base: base, cancel: cancel, ending: end}
}

// end ends whatever is still under way.
func (l *life) end() {
	l.cancel()
	l.ending()
}

// onStop has requests served, once the context ends, for as long as the delay says; then
// watches end, and drain is to let requests under way have a moment. What it
// returns waits for that, if it has begun.
func (l *life) onStop(drain func(context.Context)) (wait func()) {
	down := make(chan struct{})
	stop := context.AfterFunc(l.ctx, func() {
		defer close(down)
		l.s.Stopping()
		if l.s.ShutdownDelay > 0 {
			<-time.After(l.s.ShutdownDelay)
		}
		l.ending()
		if l.s.InFlight != nil {
			select {
			case <-l.s.InFlight.drain():
			case <-time.After(l.s.RequestTimeout):
			}
		}
		ctx, done := context.WithTimeout(context.WithoutCancel(l.ctx), Grace)
		defer done()
		drain(ctx)
	})
	return func() {
		if !stop() {
			<-down
		}
	}
}
