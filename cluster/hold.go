package cluster

import (
	"context"
	"log/slog"
	"net"

	"knarr/internal/holder"
	"knarr/internal/programs"
)

// hold hands the listening sockets to the holder, starting it if need be, so
// that after kill -9 clients wait for the next server instead of failing.
func (s *Server) hold(ctx context.Context) {
	defer close(s.holding)
	if s.holder == nil {
		program, err := programs.Unpack(s.layout.programs(), programs.Holder)
		if err == nil {
			s.holder, err = holder.Start(program, s.layout.holder())
		}
		if err != nil {
			slog.WarnContext(ctx, "sockets are not held over a restart", "err", err)
			return
		}
	}
	for _, l := range []net.Listener{s.listener, s.kubelet} {
		if l == nil {
			continue
		}
		if err := s.holder.Keep(l); err != nil {
			slog.WarnContext(ctx, "socket is not held over a restart", "address", l.Addr(), "err", err)
		}
	}
}

// letGo ends the holder; later connections are refused.
func (s *Server) letGo() {
	<-s.holding
	if err := s.holder.End(); err != nil {
		slog.Debug("end the socket holder", "err", err)
	}
}

// held listens for datagrams and streams on sockets that are held.
type held struct{ s *Server }

func (h held) ListenPacket(network, address string) (net.PacketConn, error) {
	<-h.s.holding
	p, err := h.s.holder.ListenPacket(network, address)
	if err == nil {
		if err := h.s.holder.Keep(p); err != nil {
			slog.Warn("socket is not held over a restart", "address", address, "err", err)
		}
	}
	return p, err
}

func (h held) Listen(network, address string) (net.Listener, error) {
	<-h.s.holding
	l, err := h.s.holder.Listen(network, address)
	if err == nil {
		if err := h.s.holder.Keep(l); err != nil {
			slog.Warn("socket is not held over a restart", "address", address, "err", err)
		}
	}
	return l, err
}

// endHolder ends the holder of a server that is gone.
func endHolder(l layout) error {
	c, err := holder.Connect(l.holder())
	if err != nil {
		return nil // there is none
	}
	return c.End()
}
