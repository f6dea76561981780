package userspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"knarr/internal/run"
	"knarr/node/kubeproxy/conntrack"
)

// A way is where what comes to a socket goes on to.
type way struct {
	to, inside *balancer
	cluster    []netip.Prefix
	only       []netip.Prefix // the addresses that may connect; none is all
}

// choose is the balancer for a client; nil if it may not connect.
func (w *way) choose(client netip.Addr) *balancer {
	if w.inside != nil && (contains(w.cluster, client) || conntrack.LocalAddresses(client.Is6())[client]) {
		return w.inside
	}
	if len(w.only) > 0 && !contains(w.only, client) {
		return nil
	}
	return w.to
}

func contains(ranges []netip.Prefix, a netip.Addr) bool {
	for _, p := range ranges {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// A socket listens at one place.
type socket struct {
	way    atomic.Pointer[way]
	stop   context.CancelFunc
	closer io.Closer
	wait   run.Group
}

func (s *socket) close() {
	s.stop()
	s.closer.Close()
	s.wait.Wait()
}

// The bounds of what clients make this process hold: connections of one place, and
// time until an endpoint answers.
const (
	maxConnections = 4096
	dialTime       = 5 * time.Second
	tries          = 4
)

// open listens at a place. The descriptors are closed when a program is started.
func open(p place, w way) (*socket, error) {
	ctx, stop := context.WithCancel(context.Background())
	s := &socket{stop: stop}
	s.way.Store(&w)
	var lc net.ListenConfig
	switch p.protocol {
	case corev1.ProtocolTCP:
		l, err := lc.Listen(ctx, "tcp", p.at.String())
		if err != nil {
			stop()
			return nil, err
		}
		s.closer = l
		s.wait.Go("kube-proxy: listen", func() { s.accept(ctx, l.(*net.TCPListener)) })
	case corev1.ProtocolUDP:
		c, err := lc.ListenPacket(ctx, "udp", p.at.String())
		if err != nil {
			stop()
			return nil, err
		}
		s.closer = c
		s.wait.Go("kube-proxy: datagrams", func() { s.datagrams(ctx, c.(*net.UDPConn)) })
	default:
		stop()
		return nil, fmt.Errorf("%s is not carried in the mode userspace", p.protocol)
	}
	return s, nil
}

func (s *socket) accept(ctx context.Context, l *net.TCPListener) {
	places := make(chan struct{}, maxConnections)
	var conns run.Group
	defer conns.Wait()
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			slog.Warn("accept a connection to a Service", "at", l.Addr(), "err", err)
			select { // out of descriptors, most likely
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case places <- struct{}{}:
			conns.Go("kube-proxy: connection", func() {
				defer func() { <-places }()
				s.connect(ctx, c)
			})
		default:
			refuse(c)
		}
	}
}

// refuse ends a connection with a reset.
func refuse(c *net.TCPConn) {
	_ = c.SetLinger(0) // it ends either way
	c.Close()
}

// connect leads one connection to an endpoint.
func (s *socket) connect(ctx context.Context, c *net.TCPConn) {
	client := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	b := s.way.Load().choose(client)
	if b == nil {
		refuse(c)
		return
	}
	var to *net.TCPConn
	for try := range tries {
		ep, ok := b.pick(client, try > 0, time.Now())
		if !ok {
			break
		}
		conn, err := (&net.Dialer{Timeout: dialTime}).DialContext(ctx, "tcp", ep.String())
		if err == nil {
			to = conn.(*net.TCPConn)
			break
		}
	}
	if to == nil {
		refuse(c)
		return
	}
	defer context.AfterFunc(ctx, func() { c.Close(); to.Close() })()
	var both run.Group
	for _, d := range [][2]*net.TCPConn{{to, c}, {c, to}} {
		both.Go("kube-proxy: copy", func() {
			if _, err := io.Copy(d[0], d[1]); err != nil && !errors.Is(err, net.ErrClosed) {
				refuse(d[0]) // a reset goes on as one
				refuse(d[1])
				return
			}
			_ = d[0].CloseWrite()
		})
	}
	both.Wait()
	c.Close()
	to.Close()
}

// The bounds of UDP: the clients of one place, and how long one says nothing until it
// is forgotten.
const (
	maxFlows = 4096
	idleFlow = 30 * time.Second
)

// A flow is what one client sends and gets.
type flow struct {
	to *net.UDPConn
	at netip.AddrPort
	of *balancer
}

// datagrams leads each client's to an endpoint, and the answers back.
func (s *socket) datagrams(ctx context.Context, c *net.UDPConn) {
	var mu sync.Mutex
	flows := map[netip.AddrPort]*flow{}
	var wait run.Group
	defer wait.Wait()
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		for _, f := range flows {
			f.to.Close()
		}
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buffer)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			continue // an error of an earlier answer
		}
		mu.Lock()
		f := flows[from]
		if f != nil && !f.of.lives(f.at) {
			f.to.Close()
			f = nil
		}
		if f == nil && len(flows) < maxFlows {
			if f = s.flow(from); f != nil {
				flows[from] = f
				wait.Go("kube-proxy: answers", func() {
					answer(c, from, f)
					f.to.Close()
					mu.Lock()
					defer mu.Unlock()
					if flows[from] == f {
						delete(flows, from)
					}
				})
			}
		}
		mu.Unlock()
		if f != nil {
			_ = f.to.SetReadDeadline(time.Now().Add(idleFlow))
			_, err = f.to.Write(buffer[:n])
			if errors.Is(err, syscall.ECONNREFUSED) {
				f.to.Close() // the next datagram goes to another endpoint
			}
		}
	}
}

func (s *socket) flow(client netip.AddrPort) *flow {
	b := s.way.Load().choose(client.Addr().Unmap())
	if b == nil {
		return nil
	}
	ep, ok := b.pick(client.Addr().Unmap(), false, time.Now())
	if !ok {
		return nil
	}
	to, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(ep))
	if err != nil {
		return nil
	}
	return &flow{to, ep, b}
}

// datagramBuffers are for one datagram each: a client that waits holds none.
var datagramBuffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// answer sends an endpoint's datagrams to the client until there are none for a while.
func answer(c *net.UDPConn, client netip.AddrPort, f *flow) {
	raw, err := f.to.SyscallConn()
	if err != nil {
		return
	}
	for {
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			buffer := datagramBuffers.Get().(*[64 << 10]byte)
			defer datagramBuffers.Put(buffer)
			n, err := syscall.Read(int(fd), buffer[:])
			if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
				return false
			}
			if failed = err; err == nil {
				_, failed = c.WriteToUDPAddrPort(buffer[:n], client)
			}
			return true
		})
		if err != nil || failed != nil {
			return
		}
		_ = f.to.SetReadDeadline(time.Now().Add(idleFlow))
	}
}
