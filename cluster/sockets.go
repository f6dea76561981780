package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"knarr/internal/holder"
	"knarr/internal/programs"
)

// sockets opens what this process listens on, and hands it to the holder, so
// that after kill -9 clients wait for the next process instead of failing.
type sockets struct {
	layout  layout
	holder  *holder.Client // may be nil: then nothing is held
	holding chan struct{}  // closed once holder is settled
	until   context.Context
}

// ErrReplaced is why a server or agent ends that another process takes the place of: it
// ends in order, but for its sockets, at which clients wait for that process.
var ErrReplaced = errors.New("another process takes this one's place")

func (s *sockets) replaced() bool { return errors.Is(context.Cause(s.until), ErrReplaced) }

func newSockets(l layout) *sockets {
	return &sockets{layout: l, holding: make(chan struct{}), until: context.Background()}
}

// connect finds the sockets that a process that was killed left, and holds others until
// ctx ends.
func (s *sockets) connect(ctx context.Context) {
	s.until = ctx
	if c, err := holder.Connect(s.layout.holder()); err == nil {
		s.holder = c
	}
}

// listen opens the port of a flag.
func (s *sockets) listen(address string, port int, flag string) (net.Listener, error) {
	l, err := s.holder.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %d is in use by another program; stop that one or give another --%s", port, flag)
	case err != nil:
		return nil, fmt.Errorf("--%s %d: %w", flag, port, err)
	}
	return l, nil
}

// hold hands listeners to the holder, starting it if need be.
func (s *sockets) hold(ctx context.Context, listeners ...net.Listener) {
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
	for _, l := range listeners {
		if l == nil {
			continue
		}
		if err := s.holder.Keep(l); err != nil {
			notHeld(l.Addr(), err)
		}
	}
}

// notHeld says why a socket is not held. One that this process has closed meanwhile, as at
// its end, was not to be.
func notHeld(address any, err error) {
	if !errors.Is(err, net.ErrClosed) {
		slog.Warn("socket is not held over a restart", "address", address, "err", err)
	}
}

// dropUnused lets go of sockets at some addresses that an earlier process has left and this
// one has not taken over.
func (s *sockets) dropUnused(which func(network string, at netip.AddrPort) bool) {
	<-s.holding
	dropped, err := s.holder.DropUnused(which)
	if err != nil {
		slog.Warn("sockets that nothing needs are still held", "err", err)
	}
	if len(dropped) > 0 {
		slog.Info("sockets that nothing needs any more are not held", "sockets", dropped)
	}
}

// letGo ends the holder; later connections are refused, unless another process takes this
// one's place.
func (s *sockets) letGo() {
	if <-s.holding; s.replaced() {
		return
	}
	if err := s.holder.End(); err != nil {
		slog.Debug("end the socket holder", "err", err)
	}
}

// ListenPacket opens a socket for datagrams that is held.
func (s *sockets) ListenPacket(network, address string) (net.PacketConn, error) {
	<-s.holding
	p, err := s.holder.ListenPacket(network, address)
	if err == nil {
		if err := s.holder.Keep(p); err != nil {
			notHeld(address, err)
		}
	}
	return p, err
}

// Listen opens a socket for streams that is held.
func (s *sockets) Listen(network, address string) (net.Listener, error) {
	<-s.holding
	l, err := s.holder.Listen(network, address)
	if err == nil {
		if err := s.holder.Keep(l); err != nil {
			notHeld(address, err)
		}
	}
	return l, err
}

// A droppable socket is not held any more once it is closed: its port is free then.
type droppable struct {
	*sockets
	socket any // net.Listener or net.PacketConn
}

func (d droppable) drop() {
	if d.replaced() {
		return
	}
	if err := d.holder.Drop(d.socket); err != nil {
		slog.Debug("let go of a socket", "err", err)
	}
}

type droppableListener struct {
	*net.TCPListener
	droppable
}

func (l droppableListener) Close() error {
	l.drop()
	return l.TCPListener.Close()
}

type droppablePackets struct {
	*net.UDPConn
	droppable
}

func (p droppablePackets) Close() error {
	p.drop()
	return p.UDPConn.Close()
}

// listenWhileOpen is Listen for ports that come and go while this process runs.
func (s *sockets) listenWhileOpen(network, address string) (net.Listener, error) {
	l, err := s.Listen(network, address)
	if tcp, ok := l.(*net.TCPListener); err == nil && ok {
		return droppableListener{tcp, droppable{s, tcp}}, nil
	}
	return l, err
}

// listenPacketWhileOpen is the same for datagrams.
func (s *sockets) listenPacketWhileOpen(network, address string) (net.PacketConn, error) {
	p, err := s.ListenPacket(network, address)
	if udp, ok := p.(*net.UDPConn); err == nil && ok {
		return droppablePackets{udp, droppable{s, udp}}, nil
	}
	return p, err
}

// endHolder ends the holder of a process that is gone.
func endHolder(l layout) error {
	c, err := holder.Connect(l.holder())
	if err != nil {
		return nil // there is none
	}
	return c.End()
}
