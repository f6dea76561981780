package transport

import (
	"context"

	"knarr/internal/memnet"
)

// ServeLoopback answers requests of this process at d until ctx ends, as Serve does those
// of connections. who adds the identity of whoever asks to a context.
func (s *Server) ServeLoopback(ctx context.Context, d *memnet.Loopback, who func(context.Context, any) context.Context) error {
	life := s.begin(ctx)
	defer life.end()
	d.Open(memnet.Endpoint{
		Handler:      s.Handler,
		Context:      func(identity any) context.Context { return who(life.base, identity) },
		WriteTimeout: s.RequestTimeout + Grace,
	})
	stopped := life.onStop(func(ctx context.Context) {
		select {
		case <-d.Close():
		case <-ctx.Done():
			life.cancel()
		}
	})
	<-ctx.Done()
	stopped()
	return nil
}
